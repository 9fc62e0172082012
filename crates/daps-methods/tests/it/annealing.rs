//! The loop as a whole: official schedules, bit-for-bit invariance, resumption, interruption, refusal, memory.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Center, Error, Estimate, Event, Gaussian, Likelihood, Method, Noise, Ode, OdeEnd, OdeOrder,
    OdeSteps, Problem, Purpose, RHO, Row, RowCovariance, Schedule, ScheduleRule, Spread, State,
};
use daps_methods::kernel::{
    Exact, Hmc, KernelConfig, Langevin, Mala, Metropolis, Replay, StepSize, Underdamped, Way,
};
use daps_methods::{
    Daps, Dcdp, Ddnm, Ddrm, DiffPir, Dpnp, Dps, Dynamics, Facts, FpsSmc, Guidance, Harmonic, Hio, PnpDm,
    Preset, PseudoInverse, RedDiff, Reverse, Tv, Wiener,
};
use daps_operators::{Blur, BlurKernel, Border, Inpainting, PhaseRetrieval, SuperResolution, random_mask};
use daps_priors::GaussianMixture;

#[test]
fn official_schedules_and_ode_grids() {
    let text = include_str!("../../../../tests/golden/schedules.json");
    let golden: HashMap<String, Vec<f64>> = serde_json::from_str(text).unwrap();
    let close = |a: &[f64], b: &[f64]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs().max(1e-3))
    };
    let (mut annealing, mut grids) = (0, 0);
    for (name, levels) in &golden {
        let parts: Vec<&str> = name.splitn(4, '.').collect();
        match parts[1] {
            "annealing" => {
                let n = parts[2].parse().unwrap();
                let rule = ScheduleRule::PolyCut { levels: n, max: 100.0, min: 0.1, rho: RHO };
                assert!(close(Schedule::new(&rule).unwrap().sigmas(), levels), "{name}");
                let preset = BUDGET_OF.iter().find(|b| b.1 == n);
                if let Some((budget, _)) = preset {
                    let daps = Preset::Official
                        .daps(&Facts::of_task("super_resolution").unwrap(), Some(budget), "langevin")
                        .unwrap();
                    assert!(close(Schedule::new(&daps.schedule).unwrap().sigmas(), levels), "{name}");
                }
                annealing += 1;
            }
            "ode" => {
                let steps = parts[2].parse().unwrap();
                let sigma: f64 = parts[3].trim_start_matches("sigma").parse().unwrap();
                let ode = Ode {
                    steps: OdeSteps::Fixed(steps),
                    min: 0.01,
                    rho: RHO,
                    end: OdeEnd::Min,
                    order: OdeOrder::Euler,
                };
                assert!(close(&ode.grid(sigma, steps), levels), "{name}");
                grids += 1;
            }
            other => panic!("unknown golden schedule {other}"),
        }
    }
    assert!(annealing >= 4 && grids >= 3, "{annealing} schedules, {grids} grids");
}

const BUDGET_OF: [(&str, usize); 4] = [("50", 25), ("100", 50), ("1k", 200), ("4k", 400)];

const SHAPE: [usize; 3] = [2, 8, 8];

/// How the images are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// With a mask for every measurement.
    Masks,
    /// By the magnitudes of their spectra.
    Phase,
    /// With a kernel for every measurement.
    Blurs,
}

/// Kernels of different sums, so that their blurs have different norms. Two are outer products, whose blurs have a decomposition
/// when they are alone.
fn kernels() -> [BlurKernel; 4] {
    let outer = |sum: f64| [1.0, 2.0, 1.0, 2.0, 4.0, 2.0, 1.0, 2.0, 1.0].map(|v| v / 16.0 * sum);
    let cross = [0.0, 0.4, 0.0, 0.5, 0.6, 0.2, 0.0, 0.3, 0.0];
    let slanted = [0.2, 0.0, 0.0, 0.0, 0.2, 0.05, 0.0, 0.0, 0.05];
    [outer(1.0), cross, slanted, outer(3.0)].map(|values| BlurKernel::new(&values, 3, 3).unwrap())
}

/// Four measurements of an image prior, three chains each, with noise of its own for every measurement.
struct Setup {
    likelihood: Arc<dyn Likelihood>,
    prior: Arc<GaussianMixture>,
    rows: Vec<Row>,
}

impl Setup {
    fn new(kind: Kind) -> Self {
        let prior = GaussianMixture::gaussian(&SHAPE, vec![0.1; 128], RowCovariance::Scalar(0.25)).unwrap();
        let noise = Noise::chains(9, 4);
        let truth = noise.normal(Address::new(0, Purpose::Instance, 0), &SHAPE, DType::F64).unwrap();
        let operator: Arc<dyn daps_core::Operator> = match kind {
            Kind::Phase => Arc::new(PhaseRetrieval::new(&SHAPE, 2.0).unwrap()),
            Kind::Masks => {
                let masks: Vec<Tensor> = (0..4).map(|s| random_mask(8, 8, 0.6, s).unwrap()).collect();
                Arc::new(Inpainting::new(&SHAPE, &Tensor::cat(&masks, 0).unwrap()).unwrap())
            }
            Kind::Blurs => Arc::new(Blur::new(&SHAPE, &kernels(), Border::Reflect).unwrap()),
        };
        let y = operator.apply(&(truth * 0.5).unwrap()).unwrap();
        let betas = daps_core::Beta::Rows(vec![0.05, 0.1, 0.2, 0.3]);
        let likelihood = Arc::new(Gaussian::new(operator, y, betas).unwrap());
        let rows =
            (0..4).flat_map(|measurement| (0..3).map(move |chain| Row { measurement, chain })).collect();
        Self { likelihood, prior: Arc::new(prior), rows }
    }

    fn task(&self, rows: &[usize]) -> (Problem, Noise) {
        let measurements: Vec<usize> = rows.iter().map(|&r| self.rows[r].measurement as usize).collect();
        let task = Problem::new(self.prior.clone(), self.likelihood.select(&measurements).unwrap()).unwrap();
        (task, Noise::new(4, rows.iter().map(|&r| self.rows[r]).collect()))
    }

    fn sample(&self, method: &dyn Method, rows: &[usize]) -> HashMap<usize, Vec<u64>> {
        let (task, noise) = self.task(rows);
        let samples = method.sample(&task, &noise, None, &mut ()).unwrap();
        let bits = to_f64(&samples.x).unwrap();
        rows.iter().copied().zip(bits.chunks(128).map(|x| x.iter().map(|v| v.to_bits()).collect())).collect()
    }
}

/// Methods of at least five levels.
fn methods(kind: Kind) -> Vec<(&'static str, Arc<dyn Method>)> {
    let schedule = ScheduleRule::Poly { levels: 5, max: 10.0, min: 0.1, rho: RHO };
    let ode = Estimate::Gaussian { center: Center::Ode(Ode::paper(3)), spread: Spread::Sigma };
    let own = Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Prior };
    let step = || StepSize::Curvature { factor: 0.5 };
    let estimated = |estimate: &Estimate, kernel: KernelConfig| -> Arc<dyn Method> {
        Arc::new(Daps { beta: None, schedule: schedule.clone(), estimate: estimate.clone(), kernel })
    };
    let daps = |kernel: KernelConfig| estimated(&ode, kernel);
    let mut all = vec![
        ("langevin", daps(KernelConfig::Langevin(Langevin { steps: 4, step_size: step() }))),
        ("hmc", daps(KernelConfig::Hmc(Hmc { steps: 4, step_size: step(), momentum: 0.5 }))),
        (
            "metropolis",
            daps(KernelConfig::Metropolis(Metropolis { steps: 6, warmup: 3, step_size: step(), blocks: 2 })),
        ),
        ("mala", daps(KernelConfig::Mala(Mala { steps: 4, warmup: 4, c: 1.0 }))),
        ("underdamped", daps(KernelConfig::Underdamped(Underdamped { steps: 12, time_step: 1.2 }))),
        (
            "the prior's spread, langevin",
            estimated(&own, KernelConfig::Langevin(Langevin { steps: 4, step_size: step() })),
        ),
    ];
    let guidance = Guidance::Likelihood { scale: 0.1 };
    all.push(("dps", Arc::new(Dps { schedule: schedule.clone(), dynamics: Dynamics::Sde, guidance })));
    if kind == Kind::Masks {
        all.push(("replay", daps(KernelConfig::Replay(Replay { steps: 4, step_size: step() }))));
    }
    if kind != Kind::Phase {
        all.push(("exact", daps(KernelConfig::Exact(Exact::default()))));
        all.push(("the prior's spread, exact", estimated(&own, KernelConfig::Exact(Exact::default()))));
        let cg = KernelConfig::Exact(Exact { way: Way::ConjugateGradient, ..Exact::default() });
        all.push(("conjugate gradients", daps(cg.clone())));
        all.push(("the prior's spread, conjugate gradients", estimated(&own, cg)));
        let exact = KernelConfig::Exact(Exact::default());
        let draws = Estimate::Draws { count: 4 };
        let schedule = schedule.clone();
        all.push(("draws", Arc::new(Daps { beta: None, schedule, estimate: draws, kernel: exact })));
    }
    all.extend(rivals(kind, &schedule));
    all
}

/// Methods of one level for linear operators.
fn at_once() -> Vec<(&'static str, Arc<dyn Method>)> {
    vec![("wiener", Arc::new(Wiener::default())), ("pseudo_inverse", Arc::new(PseudoInverse::default()))]
}

/// Those that are not DAPS or DPS.
fn rivals(kind: Kind, levels: &ScheduleRule) -> Vec<(&'static str, Arc<dyn Method>)> {
    let schedule = || levels.clone();
    let reverse = Reverse { steps: 6, ..Reverse::default() };
    let dcdp = Dcdp { schedule: schedule(), steps: 3, ode: Ode::paper(3), ..Dcdp::default() };
    let mala = KernelConfig::Mala(Mala { steps: 3, warmup: 2, c: 1.0 });
    let dpnp = Dpnp { iterations: 5, hold: 1, reverse, nonlinear: mala.clone(), ..Dpnp::default() };
    let mut all: Vec<(&'static str, Arc<dyn Method>)> = vec![
        ("red_diff", Arc::new(RedDiff { schedule: schedule(), ..RedDiff::default() })),
        ("dcdp", Arc::new(dcdp)),
        ("dpnp", Arc::new(dpnp)),
        ("pnp_dm", Arc::new(PnpDm { iterations: 5, reverse, nonlinear: mala, ..PnpDm::default() })),
    ];
    if kind == Kind::Masks {
        all.push(("ddrm", Arc::new(Ddrm { schedule: schedule(), ..Ddrm::default() })));
        all.push(("ddnm", Arc::new(Ddnm { schedule: schedule(), ..Ddnm::default() })));
        all.push(("fps_smc", Arc::new(FpsSmc { schedule: schedule(), particles: 3, ..FpsSmc::default() })));
    }
    if kind == Kind::Phase {
        all.push(("hio", Arc::new(Hio { iterations: 5, ..Hio::default() })));
    } else {
        all.push(("diffpir", Arc::new(DiffPir { schedule: schedule(), ..DiffPir::default() })));
        all.push(("tv", Arc::new(Tv { iterations: 5, ..Tv::default() })));
        all.push(("harmonic", Arc::new(Harmonic { iterations: 5, ..Harmonic::default() })));
    }
    all
}

/// Batches of 12, of 5, one by one and in reverse, on one thread and on three: every sample has the same bits.
#[test]
fn samples_do_not_depend_on_batch_order_or_threads() {
    for kind in [Kind::Masks, Kind::Phase, Kind::Blurs] {
        let setup = Setup::new(kind);
        let all: Vec<usize> = (0..12).collect();
        let at_once = if kind == Kind::Phase { vec![] } else { at_once() };
        for (name, method) in methods(kind).into_iter().chain(at_once) {
            let whole = setup.sample(&*method, &all);
            for pool in [1, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(pool).build().unwrap();
                pool.install(|| {
                    let mut parts = HashMap::new();
                    for rows in [&[11usize, 4, 7, 0, 2][..], &[1], &[10, 9, 8, 6, 5, 3]] {
                        parts.extend(setup.sample(&*method, rows));
                    }
                    assert_eq!(parts, whole, "{name}, {kind:?}");
                });
            }
        }
    }
}

/// Stopped after every level in turn and resumed from the state that the observer saw: the same bits.
#[test]
fn a_resumed_run_gives_the_same_bits() {
    let rows = [0usize, 5, 11];
    for (kind, name, method) in [Kind::Masks, Kind::Phase, Kind::Blurs]
        .into_iter()
        .flat_map(|kind| methods(kind).into_iter().map(move |(name, method)| (kind, name, method)))
    {
        let setup = Setup::new(kind);
        let whole = setup.sample(&*method, &rows);
        for stop in 0..4 {
            let (task, noise) = setup.task(&rows);
            let mut saved: Option<State> = None;
            let mut watch = |event: &Event| {
                let Event::Level { step, state, .. } = event else { return ControlFlow::Continue(()) };
                if step.index == stop {
                    saved = Some((*state).clone());
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            };
            let stopped = method.sample(&task, &noise, None, &mut watch);
            assert!(matches!(stopped, Err(Error::Cancelled { .. })), "{name}");
            let samples = method.sample(&task, &noise, saved, &mut ()).unwrap();
            let bits: Vec<Vec<u64>> = to_f64(&samples.x)
                .unwrap()
                .chunks(128)
                .map(|x| x.iter().map(|v| v.to_bits()).collect())
                .collect();
            for (row, bits) in rows.iter().zip(bits) {
                assert_eq!(bits, whole[row], "{name}, {kind:?}, stopped after level {stop}");
            }
        }
    }
}

#[test]
fn unfit_pairs_are_refused_in_one_sentence_before_any_work() {
    let (task, noise) = Setup::new(Kind::Phase).task(&[0]);
    let sentence = |method: &dyn Method| method.sample(&task, &noise, None, &mut ()).unwrap_err().to_string();
    let daps = |kernel| Daps {
        beta: None,
        schedule: ScheduleRule::Poly { levels: 3, max: 10.0, min: 0.1, rho: RHO },
        estimate: Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Sigma },
        kernel,
    };
    let replay = sentence(&daps(KernelConfig::Replay(Replay::default())));
    assert_eq!(replay, "daps needs a singular value decomposition; phase_retrieval has none");
    let exact = sentence(&daps(KernelConfig::Exact(Exact::default())));
    assert_eq!(exact, "daps needs a linear or pixelwise operator; phase_retrieval has none");
    let ddrm = sentence(&Ddrm::default());
    assert_eq!(ddrm, "ddrm needs a singular value decomposition; phase_retrieval has none");
    assert_eq!(sentence(&DiffPir::default()), "diffpir needs a linear operator; phase_retrieval has none");
    let (task, noise) = Setup::new(Kind::Masks).task(&[0]);
    let hio = Hio::default().sample(&task, &noise, None, &mut ()).unwrap_err().to_string();
    assert_eq!(hio, "hio needs Fourier magnitudes; inpaint has none");
}

#[test]
fn wrong_shapes_and_values_are_refused() {
    let operator = Arc::new(SuperResolution::new(&[1, 8, 8], 2).unwrap());
    let y =
        |dims: &[usize], value: f64| from_f64(vec![value; dims.iter().product()], dims, DType::F64).unwrap();
    let error = |y: Tensor, beta: f64| Gaussian::new(operator.clone(), y, beta).err().unwrap().to_string();
    assert!(error(y(&[1, 1, 8, 8], 0.0), 0.1).contains("expected shape [1, 1, 4, 4], got [1, 1, 8, 8]"));
    assert!(error(y(&[1, 1, 4, 4], f64::NAN), 0.1).contains("16 of 16 values are NaN or infinite"));
    for beta in [0.0, -0.1, f64::INFINITY, f64::NAN] {
        assert!(error(y(&[1, 1, 4, 4], 0.0), beta).contains("positive finite"));
    }
    let prior = GaussianMixture::gaussian(&[1, 4, 4], vec![0.0; 16], RowCovariance::Scalar(1.0)).unwrap();
    let likelihood = Gaussian::new(operator.clone(), y(&[1, 1, 4, 4], 0.0), 0.1).unwrap();
    assert!(Problem::new(Arc::new(prior), Arc::new(likelihood)).is_err());
    let mask = Tensor::ones((1, 1, 4, 4), DType::F64, &Device::Cpu).unwrap();
    assert!(Inpainting::new(&[1, 8, 8], &mask).err().unwrap().to_string().contains("mask"));
}
