//! The paper's two-dimensional experiment: DAPS, DPS-SDE and DPS-ODE against a posterior that is known exactly.
//!
//! Prior: 1000 points of ½N((-0.3,-0.4), Σ) + ½N((0.6,0.5), Σ), Σ = diag(0.01, 0.04), with their closed-form score.
//! Measurement: two bumps, at (0,0) and (0.5,0.5), with noise 0.3. The paper prints y = 0, for which 69 % of the posterior
//! sits on the far mode; its figure shows what y = 1 gives, one mode at (0.5,0.5), so y = 1 is used.

use std::ops::ControlFlow;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use daps::plot::{Line, Panel};
use daps::progress::Progress;
use daps::{Error, Result};
use daps_core::mixture::Mixture;
use daps_core::tensors::to_f64;
use daps_core::{
    Address, Center, Estimate, Event, Gaussian, Method, Noise, Ode, OdeEnd, OdeOrder, OdeSteps, Problem,
    Purpose, RHO, RowCovariance, ScheduleRule, Spread,
};
use daps_methods::kernel::{KernelConfig, Langevin, StepSize};
use daps_methods::{Daps, Dps, Dynamics, Guidance};
use daps_metrics::wasserstein::w2;
use daps_operators::Toy2d;
use daps_priors::{Analytic, Empirical, GaussianMixture, Posterior};
use serde::Serialize;

const MODES: [[f64; 2]; 2] = [[-0.3, -0.4], [0.6, 0.5]];
const VARIANCE: [f64; 2] = [0.01, 0.04];
const POINTS: usize = 1000;
const NOISE: f64 = 0.3;
const Y: f64 = 1.0;
/// Largest and smallest noise level; the data lie within 1 of the origin.
const SIGMA: (f64, f64) = (10.0, 0.01);
/// W2 per level is taken from at most this many samples at about this many levels: an assignment costs n³.
const LEVEL_SAMPLES: usize = 250;
const LEVEL_COUNT: usize = 25;
/// Trajectories that are drawn.
const PATHS: usize = 6;

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Samples per method.
    pub samples: usize,
    /// Annealing levels.
    pub levels: usize,
    /// Seed of everything that is random.
    pub seed: u64,
}

impl Default for Settings {
    /// The paper's: 200 levels, 100 samples.
    fn default() -> Self {
        Self { samples: 100, levels: 200, seed: 0 }
    }
}

/// What a method did.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The method; `exact` is a second set of exact posterior samples.
    pub method: &'static str,
    /// W2 to exact posterior samples at the last level.
    pub w2_last: f64,
    /// Share of samples nearer to (0.6, 0.5) than to (-0.3, -0.4).
    pub right_mode: f64,
    /// (σ, W2 between x_t and exact samples of p(x_t | y)).
    #[serde(skip)]
    pub w2_levels: Vec<(f64, f64)>,
    /// Final samples.
    #[serde(skip)]
    pub samples: Vec<[f64; 2]>,
    /// x_t of a few chains, level by level.
    #[serde(skip)]
    pub paths: Vec<Vec<[f64; 2]>>,
}

/// The experiment's results.
pub struct Toy {
    /// One per method.
    pub outcomes: Vec<Outcome>,
    /// Exact posterior samples.
    pub reference: Vec<[f64; 2]>,
}

struct Experiment {
    settings: Settings,
    task: Problem,
    posterior: Posterior,
    noise: Noise,
    reference: Vec<f64>,
}

/// Runs the three methods.
pub fn run(settings: Settings, progress: &mut dyn Progress) -> Result<Toy> {
    if settings.samples < 2 || settings.levels < 2 {
        return Err(Error::Config(format!(
            "toy: expected at least 2 samples and 2 levels, got {} and {}",
            settings.samples, settings.levels
        )));
    }
    let experiment = Experiment::new(settings)?;
    progress.begin("2-D experiment", 3 * settings.levels);
    let mut outcomes = Vec::new();
    for (name, method) in methods(settings.levels) {
        outcomes.push(experiment.run(name, &*method, progress)?);
    }
    let second = experiment.posterior.draw(&experiment.noise, Address::new(0, Purpose::Reference, 1))?;
    outcomes.push(experiment.judge("exact", to_f64(&second)?, vec![], vec![])?);
    progress.end();
    Ok(Toy { outcomes, reference: pairs(&experiment.reference) })
}

/// DAPS with the paper's ODE estimate, r = σ and 100 Langevin steps; DPS with the true likelihood through the denoiser.
fn methods(levels: usize) -> Vec<(&'static str, Arc<dyn Method>)> {
    let schedule = ScheduleRule::Poly { levels, max: SIGMA.0, min: SIGMA.1, rho: RHO };
    let ode =
        Ode { steps: OdeSteps::Fixed(5), min: SIGMA.1, rho: RHO, end: OdeEnd::Zero, order: OdeOrder::Euler };
    let daps = Daps {
        beta: None,
        schedule: schedule.clone(),
        estimate: Estimate::Gaussian { center: Center::Ode(ode), spread: Spread::Sigma },
        kernel: KernelConfig::Langevin(Langevin {
            steps: 100,
            step_size: StepSize::Curvature { factor: 0.1 },
        }),
    };
    let dps = |dynamics| Dps {
        schedule: schedule.clone(),
        dynamics,
        guidance: Guidance::Likelihood { scale: 1.0 },
    };
    vec![
        ("daps", Arc::new(daps)),
        ("dps-sde", Arc::new(dps(Dynamics::Sde))),
        ("dps-ode", Arc::new(dps(Dynamics::Ode))),
    ]
}

impl Experiment {
    fn new(settings: Settings) -> Result<Self> {
        let covariance = RowCovariance::Diagonal(VARIANCE.to_vec());
        let mixture = Mixture::new(vec![0.0; 2], MODES.concat(), Arc::new(vec![covariance]))?;
        let mixture = GaussianMixture::new(&[2], mixture)?;
        let data = Noise::chains(settings.seed, POINTS);
        let points = mixture.draw(&data, Address::new(0, Purpose::Instance, 0))?;
        let prior = Empirical::new(&points)?;
        let y = |rows: usize| Tensor::full(Y, (rows, 1), &Device::Cpu);
        let operator = Arc::new(Toy2d::new(&[2])?);
        let one = Gaussian::new(operator.clone(), y(1)?, NOISE)?;
        let posterior = prior.posterior(&one, 0)?;
        let noise = Noise::chains(settings.seed, settings.samples);
        let reference = to_f64(&posterior.draw(&noise, Address::new(0, Purpose::Reference, 0))?)?;
        let likelihood = Gaussian::new(operator, y(settings.samples)?, NOISE)?;
        let task = Problem::new(Arc::new(prior), Arc::new(likelihood))?;
        Ok(Self { settings, task, posterior, noise, reference })
    }

    fn run(&self, name: &'static str, method: &dyn Method, progress: &mut dyn Progress) -> Result<Outcome> {
        let every = self.settings.levels.div_ceil(LEVEL_COUNT);
        let (mut levels, mut trace, mut failed) = (Vec::new(), Vec::new(), None);
        let mut watch = |event: &Event| {
            let Event::Level { step, state, .. } = event else { return ControlFlow::Continue(()) };
            let look = to_f64(&state.x_t).map_err(Error::from).and_then(|x| {
                if step.next > 0.0 && step.index % every == every - 1 {
                    levels.push((step.next, self.level_distance(&x, step.next, step.index)?));
                }
                trace.push(x[..2 * PATHS.min(self.settings.samples)].to_vec());
                Ok(())
            });
            if let Err(error) = look {
                failed = Some(error);
                return ControlFlow::Break(());
            }
            progress.step(&format!("{name}: sigma {:.3}", step.sigma))
        };
        let result = method.sample(&self.task, &self.noise, None, &mut watch);
        if let Some(error) = failed {
            return Err(error);
        }
        let samples = to_f64(&result?.x)?;
        let chains = PATHS.min(self.settings.samples);
        let path = |chain: usize| trace.iter().map(|x| [x[2 * chain], x[2 * chain + 1]]).collect();
        self.judge(name, samples, levels, (0..chains).map(path).collect())
    }

    /// W2 between x_t and exact samples of p(x_t | y): posterior samples plus noise of the level.
    fn level_distance(&self, x: &[f64], sigma: f64, level: usize) -> Result<f64> {
        let n = self.settings.samples.min(LEVEL_SAMPLES);
        let rows: Vec<usize> = (0..n).collect();
        let noise = self.noise.select(&rows);
        let exact = self.posterior.draw(&noise, Address::new(level + 1, Purpose::Reference, 0))?;
        let z = noise.normal(Address::new(level + 1, Purpose::Reference, 1), &[2], DType::F64)?;
        let exact: Vec<f64> = to_f64(&exact)?.iter().zip(to_f64(&z)?).map(|(x, z)| x + sigma * z).collect();
        Ok(w2(&x[..2 * n], &exact, 2)?)
    }

    fn judge(
        &self,
        method: &'static str,
        samples: Vec<f64>,
        w2_levels: Vec<(f64, f64)>,
        paths: Vec<Vec<[f64; 2]>>,
    ) -> Result<Outcome> {
        let distance = |x: &[f64; 2], m: [f64; 2]| (x[0] - m[0]).powi(2) + (x[1] - m[1]).powi(2);
        let points = pairs(&samples);
        let right = points.iter().filter(|x| distance(x, MODES[1]) < distance(x, MODES[0])).count();
        Ok(Outcome {
            method,
            w2_last: w2(&samples, &self.reference, 2)?,
            right_mode: right as f64 / points.len() as f64,
            w2_levels,
            samples: points,
            paths,
        })
    }
}

fn pairs(values: &[f64]) -> Vec<[f64; 2]> {
    values.chunks(2).map(|x| [x[0], x[1]]).collect()
}

impl Toy {
    /// Samples over the exact posterior, one panel a method.
    pub fn samples_svg(&self) -> Result<String> {
        let panel = |o: &Outcome| Panel {
            title: format!("{}: W2 {:.3} (exact in grey)", o.method, o.w2_last),
            clouds: vec![self.reference.clone(), o.samples.clone()],
            paths: vec![],
        };
        daps::plot::clouds(&self.outcomes.iter().map(panel).collect::<Vec<_>>(), 2)
    }

    /// x_t of a few chains over the exact posterior.
    pub fn trajectories_svg(&self) -> Result<String> {
        let panel = |o: &Outcome| Panel {
            title: format!("{}: x_t of {} chains", o.method, o.paths.len()),
            clouds: vec![self.reference.clone(), o.paths.iter().filter_map(|p| p.last().copied()).collect()],
            // Far out, all methods wander alike: show where they have come near the data.
            paths: o.paths.iter().map(|p| p[p.len() / 2..].to_vec()).collect(),
        };
        let walked = self.outcomes.iter().filter(|o| !o.paths.is_empty());
        daps::plot::clouds(&walked.map(panel).collect::<Vec<_>>(), 3)
    }

    /// W2 per level.
    pub fn levels_svg(&self) -> Result<String> {
        let lines: Vec<Line> = self
            .outcomes
            .iter()
            .filter(|o| !o.w2_levels.is_empty())
            .map(|o| Line { name: o.method, points: o.w2_levels.clone() })
            .collect();
        daps::plot::log_lines("Distance of x_t to p(x_t | y)", "noise level", "W2", &lines, true)
    }
}
