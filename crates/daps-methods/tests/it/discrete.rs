//! Tokens against enumeration: chains, kernels, the loop and its rivals on binary images so small that every law is a table.

mod tables;

use std::sync::Arc;

use daps_core::candle::{Device, Tensor};
use daps_core::{
    Address, Approx, Categorical, Conditional, Corruption, Likelihood, Method, Mismatch, Noise, Problem,
    Purpose, Rate, Result, ReverseChain, ScheduleRule, Step, TokenEstimate,
};
use daps_methods::kernel::{Exact, Flips, KernelConfig};
use daps_methods::{BestOfN, DiscreteDaps, Facts, MethodConfig, SvddPm};
use daps_operators::{Gate, Inpainting, Pairs};
use daps_priors::Listed;
use tables::{Law, floor, law_of, total_variation};

/// Pixels like their neighbours, and light ones are rare: several modes, no symmetry.
fn prior(rate: Rate, side: usize) -> Listed {
    let chain = Corruption::new(2, rate).unwrap();
    Listed::all(chain, &[1, side, side], |x| {
        let at = |i: usize, j: usize| f64::from(x[i * side + j]);
        let mut energy = 0.0;
        for i in 0..side {
            for j in 0..side {
                energy -= 0.4 * at(i, j);
                energy +=
                    if i + 1 < side { 1.1 * f64::from(u8::from(at(i, j) == at(i + 1, j))) } else { 0.0 };
                energy +=
                    if j + 1 < side { 1.1 * f64::from(u8::from(at(i, j) == at(i, j + 1))) } else { 0.0 };
            }
        }
        f64::exp(energy)
    })
    .unwrap()
}

fn likelihood(task: &str, side: usize, rows: usize, beta: f64) -> Mismatch {
    let shape = [1, side, side];
    let n = side * side;
    let pairs: Vec<[usize; 2]> = (0..n / 2).map(|k| [k, n - 1 - k]).collect();
    let operator: Arc<dyn daps_core::Operator> = match task {
        "xor" => Arc::new(Pairs::new(Gate::Xor, &shape, &pairs).unwrap()),
        "and" => Arc::new(Pairs::new(Gate::And, &shape, &pairs).unwrap()),
        _ => {
            let mask: Vec<u8> = (0..n).map(|i| (i % 2) as u8).collect();
            let mask = Tensor::from_vec(mask, (1, 1, side, side), &Device::Cpu).unwrap();
            Arc::new(Inpainting::new(&shape, &mask).unwrap())
        }
    };
    let outputs: usize = operator.output_shape().iter().product();
    // Inpainting shows ones where it shows anything; the gates alternate.
    let y = |k: usize| if task == "inpaint" { (k % 2) as u8 } else { ((k + 1) % 2) as u8 };
    let y: Vec<u8> = (0..rows).flat_map(|_| (0..outputs).map(y)).collect();
    let dims: Vec<usize> = std::iter::once(rows).chain(operator.output_shape().iter().copied()).collect();
    Mismatch::new(operator, &Tensor::from_vec(y, dims, &Device::Cpu).unwrap(), beta).unwrap()
}

/// Distance of draws to a law, beside what chance allows.
fn agrees(what: &str, x: &Tensor, law: &Law, states: usize) {
    let draws = x.dims()[0];
    let distance = total_variation(&law_of(x, states), law);
    // One draw moves the distance by 1/n at most, so its deviation is below 1/(2√n) (McDiarmid).
    let allowed = floor(law, draws) + 2.0 / (draws as f64).sqrt();
    println!("{what}: distance {distance:.4}, chance alone {:.4}", floor(law, draws));
    assert!(distance < allowed, "{what}: {distance} is above {allowed}");
}

fn levels(sigmas: &[f64]) -> ScheduleRule {
    ScheduleRule::Levels { sigmas: sigmas.to_vec() }
}

fn step(sigma: f64) -> Step {
    Step { index: 0, of: 1, start: sigma, sigma, next: 0.0 }
}

#[test]
fn forward_and_reverse_chains_have_their_closed_form() {
    for (rate, side) in [(Rate::Uniform, 3), (Rate::Absorbing, 2)] {
        let (prior, draws) = (prior(rate, side), 6000);
        let chain = *prior.corruption();
        let (noise, at) = (Noise::chains(1, draws), |p| Address::new(0, p, 0));
        let x0 = prior.draw(&noise, at(Purpose::Reference)).unwrap();
        agrees("prior", &x0, &prior.probabilities(), 2);
        let x_t = chain.corrupt(&x0, &[0.7], &noise, at(Purpose::Renoise)).unwrap();
        let forward = tables::forward(&prior.probabilities(), &prior, 0.7);
        agrees("forward", &x_t, &forward, chain.states());
        for steps in [1, 3] {
            let reverse = ReverseChain { steps, min: 0.1 };
            let x0_hat = reverse.run(&prior, &x_t, 0.7, &noise, 0).unwrap().x0;
            let law = tables::reverse(&forward, &prior, &reverse, 0.7);
            agrees(&format!("reverse in {steps}"), &x0_hat, &law, 2);
        }
        // Short steps bring the reverse chain back to the prior.
        let off = |steps| {
            let law = tables::reverse(&forward, &prior, &ReverseChain { steps, min: 0.01 }, 0.7);
            total_variation(&law, &prior.probabilities())
        };
        assert!(off(24) < 0.5 * off(3) && off(24) < 0.05, "{} {}", off(3), off(24));
    }
}

#[test]
fn with_the_oracle_the_loop_draws_the_posterior_at_any_number_of_levels() {
    let draws = 4000;
    for (rate, side, sigmas) in [
        (Rate::Uniform, 3, vec![30.0, 0.0]),
        (Rate::Uniform, 3, vec![30.0, 1.0, 0.2, 0.0]),
        (Rate::Absorbing, 2, vec![30.0, 2.0, 0.5, 0.1, 0.0]),
    ] {
        let prior = prior(rate, side);
        let likelihood = likelihood("xor", side, draws, 0.8);
        let posterior = prior.posterior(&likelihood, 0).unwrap();
        let task = Problem::discrete(Arc::new(prior), Arc::new(likelihood)).unwrap();
        let method = DiscreteDaps {
            schedule: levels(&sigmas),
            estimate: TokenEstimate::Exact,
            kernel: KernelConfig::Exact(Exact::default()),
        };
        let samples = method.sample(&task, &Noise::chains(2, draws), None, &mut ()).unwrap();
        agrees(&format!("oracle, {} levels", sigmas.len() - 1), &samples.x, &posterior, 2);
    }
}

#[test]
fn with_an_approximation_the_law_is_the_product_of_the_transition_tables() {
    let draws = 6000;
    let sigmas = [8.0, 1.2, 0.4, 0.1, 0.0];
    let chain = ReverseChain { steps: 2, min: 0.05 };
    for (rate, side) in [(Rate::Uniform, 3), (Rate::Absorbing, 2)] {
        for name in ["xor", "and", "inpaint"] {
            for estimate in [TokenEstimate::Hamming(chain), TokenEstimate::Marginals] {
                let prior = prior(rate, side);
                let likelihood = likelihood(name, side, draws, 0.8);
                let posterior = prior.posterior(&likelihood, 0).unwrap();
                let law = tables::annealed(&prior, &likelihood, estimate, &sigmas);
                let task = Problem::discrete(Arc::new(prior), Arc::new(likelihood)).unwrap();
                let kernel = KernelConfig::Exact(Exact::default());
                let method = DiscreteDaps { schedule: levels(&sigmas), estimate, kernel };
                let samples = method.sample(&task, &Noise::chains(3, draws), None, &mut ()).unwrap();
                let off = total_variation(&law, &posterior);
                println!("{name} {rate:?} {estimate:?}: law to posterior {off:.4}");
                agrees("  draws to law", &samples.x, &law, 2);
            }
        }
    }
}

/// The price of the approximations, without any draw: how far the loop's law stays from the posterior as levels get many.
#[test]
fn more_levels_lower_the_price_of_the_approximations() {
    let chain = ReverseChain { steps: 2, min: 0.05 };
    for name in ["xor", "and", "inpaint"] {
        let (prior, likelihood) = (prior(Rate::Uniform, 3), likelihood(name, 3, 1, 0.8));
        let posterior = prior.posterior(&likelihood, 0).unwrap();
        let price = |estimate, count: usize| {
            let ratio = (8.0f64 / 0.01).powf(1.0 / (count - 1) as f64);
            let mut sigmas: Vec<f64> = (0..count).map(|k| 8.0 / ratio.powi(k as i32)).collect();
            sigmas.push(0.0);
            total_variation(&tables::annealed(&prior, &likelihood, estimate, &sigmas), &posterior)
        };
        let of = |estimate| [4, 32].map(|count| price(estimate, count));
        let (marginals, hamming) = (of(TokenEstimate::Marginals), of(TokenEstimate::Hamming(chain)));
        println!("{name}, 4 and 32 levels: marginals {marginals:.3?}, Hamming {hamming:.3?}");
        assert!(marginals[1] < 0.9 * marginals[0] && hamming[1] < 0.9 * hamming[0]);
        // Where a measurement says nothing of a single token, tokens apart from each other are nearly enough.
        assert!(name == "inpaint" || (marginals[1] < 0.1 && marginals[1] < 0.5 * hamming[1]));
    }
}

#[test]
fn flips_and_groups_draw_the_conditional() {
    let (side, draws, sigma) = (3, 20_000, 0.9);
    for name in ["xor", "and", "inpaint"] {
        let likelihood = likelihood(name, side, draws, 0.8);
        let center =
            Tensor::from_vec((0..9).map(|i| u8::from(i < 4)).collect::<Vec<_>>(), (1, 1, 3, 3), &Device::Cpu);
        let start = center.unwrap().repeat((draws, 1, 1, 1)).unwrap();
        let (log_probs, law) = tables::around(&start, &likelihood, sigma);
        let approx = Approx::Sites { start, log_probs, symbols: 2 };
        let target = Conditional { approx: &approx, likelihood: &likelihood };
        let kernels: [(&str, KernelConfig); 3] = [
            ("single", KernelConfig::Flips(Flips { sweeps: 40, joint: false })),
            ("joint", KernelConfig::Flips(Flips { sweeps: 20, joint: true })),
            ("groups", KernelConfig::Exact(Exact::default())),
        ];
        for (way, kernel) in kernels {
            let (x, _) =
                kernel.build().unwrap().draw(&target, &Noise::chains(4, draws), &step(sigma)).unwrap();
            agrees(&format!("{name}, {way}"), &x, &law, 2);
        }
    }
}

/// The same likelihood, without its local terms.
struct Whole(Mismatch);

impl Likelihood for Whole {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn input_shape(&self) -> &[usize] {
        self.0.input_shape()
    }
    fn log_prob(&self, x: &Tensor) -> Result<Vec<f64>> {
        self.0.log_prob(x)
    }
    fn select(&self, rows: &[usize]) -> Result<Arc<dyn Likelihood>> {
        self.0.select(rows)
    }
}

#[test]
fn local_terms_decide_as_whole_applications_do() {
    let rows = 50;
    for name in ["xor", "and", "inpaint"] {
        let (local, whole) = (likelihood(name, 3, rows, 0.8), Whole(likelihood(name, 3, rows, 0.8)));
        let start = Tensor::zeros((rows, 1, 3, 3), daps_core::candle::DType::U8, &Device::Cpu).unwrap();
        let (log_probs, _) = tables::around(&start, &local, 0.9);
        let approx = Approx::Sites { start, log_probs, symbols: 2 };
        let kernel = KernelConfig::Flips(Flips { sweeps: 5, joint: false }).build().unwrap();
        let draw = |likelihood: &dyn Likelihood| {
            let (x, info) = kernel
                .draw(&Conditional { approx: &approx, likelihood }, &Noise::chains(5, rows), &step(0.9))
                .unwrap();
            (x.flatten_all().unwrap().to_vec1::<u8>().unwrap(), info.acceptance, info.cost.operator_calls)
        };
        let ((a, b, calls), (c, d, applications)) = (draw(&local), draw(&whole));
        assert_eq!((a, b), (c, d), "{name}");
        assert_eq!((calls, applications), (1, 46));
    }
}

#[test]
fn best_of_n_has_the_law_of_the_best_of_n_samples() {
    let (draws, sigmas) = (20_000, [6.0, 0.5, 0.0]);
    let prior = prior(Rate::Uniform, 2);
    let likelihood = likelihood("and", 2, draws, 0.8);
    let law = tables::best_of(&tables::ancestral(&prior, &sigmas), &prior, &likelihood, 3);
    let task = Problem::discrete(Arc::new(prior), Arc::new(likelihood)).unwrap();
    let method = BestOfN { schedule: levels(&sigmas), particles: 3 };
    let samples = method.sample(&task, &Noise::chains(6, draws), None, &mut ()).unwrap();
    agrees("best of 3", &samples.x, &law, 2);
    assert_eq!((samples.cost.nfe, samples.cost.operator_calls), (6, 3));
}

#[test]
fn svdd_pm_has_the_law_of_its_choice_between_two() {
    let (draws, sigmas) = (20_000, [6.0, 1.0, 0.3, 0.0]);
    for (rate, alpha) in [(Rate::Uniform, 1.0), (Rate::Uniform, 0.0), (Rate::Absorbing, 2.0)] {
        let prior = prior(rate, 2);
        let likelihood = likelihood("xor", 2, draws, 0.8);
        let law = tables::value_guided(&prior, &likelihood, &sigmas, alpha);
        let posterior = prior.posterior(&likelihood, 0).unwrap();
        println!("svdd_pm α = {alpha}: law to posterior {:.4}", total_variation(&law, &posterior));
        let task = Problem::discrete(Arc::new(prior), Arc::new(likelihood)).unwrap();
        let method = SvddPm { schedule: levels(&sigmas), particles: 2, alpha };
        let samples = method.sample(&task, &Noise::chains(7, draws), None, &mut ()).unwrap();
        agrees(&format!("svdd_pm α = {alpha}"), &samples.x, &law, 2);
    }
}

#[test]
fn what_does_not_fit_is_refused_in_one_sentence() {
    let three = Listed::all(Corruption::new(3, Rate::Uniform).unwrap(), &[1, 2, 2], |_| 1.0).unwrap();
    let message = Problem::discrete(Arc::new(three), Arc::new(likelihood("xor", 2, 1, 1.0))).err().unwrap();
    assert_eq!(message.to_string(), "alphabet of the prior, as seen by xor: expected 2 symbols, got 3");

    let task =
        Problem::discrete(Arc::new(prior(Rate::Uniform, 2)), Arc::new(likelihood("xor", 2, 1, 1.0))).unwrap();
    let dps = MethodConfig::named("ddnm").unwrap().build(&Facts::of(&*task.likelihood)).unwrap();
    assert_eq!(
        dps.check(&task).unwrap_err().to_string(),
        "ddnm needs a denoiser; a prior over tokens has none"
    );

    let langevin = toml::to_string(&KernelConfig::named("langevin").unwrap()).unwrap();
    let settings =
        format!("[kernel]\n{}", langevin.replace("[step_size]", "[kernel.step_size]")).parse().unwrap();
    let settings = MethodConfig::new("discrete_daps", settings).unwrap();
    let message = settings.build(&Facts::of(&*task.likelihood)).err().unwrap().to_string();
    assert!(message.starts_with("discrete_daps.kernel: expected flips or exact, got langevin"), "{message}");
}
