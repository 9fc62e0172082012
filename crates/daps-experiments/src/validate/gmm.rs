//! The Gaussian-mixture test bed: 25 modes, a linear measurement of a few numbers, a posterior known exactly.
//!
//! Component k = 5(i+2) + (j+2) has the mean (-8i, -8j, -8i, -8j, …) and unit covariance; weights are ∝ N(0,1)²; the
//! measurement is y = diag(s) V x + σ_y n with orthonormal rows in V, s sorted from `U[0,1]` and σ_y = `U[0,1]` max s. (A left
//! rotation U of the measurement changes neither its noise nor the posterior, so it is left out.) A method's score is the
//! mean W1 over random slices between its samples and exact posterior samples.

use std::sync::Arc;
use std::time::Instant;

use candle_core::{Device, Tensor};
use daps::progress::Progress;
use daps::{Error, Result};
use daps_core::mixture::Mixture;
use daps_core::tensors::to_f64;
use daps_core::{
    Address, Center, CovarianceKind, Denoiser, Error as CoreError, Estimate, Gaussian, Likelihood, Method,
    Noise, Ode, OdeEnd, OdeOrder, OdeSteps, Problem, Purpose, RHO, Row, RowCovariance, ScheduleRule, Spread,
    fill_normal, open01,
};
use daps_methods::kernel::{DecayBy, Exact, KernelConfig, Langevin, StepSize};
use daps_methods::{Daps, Dps, Dynamics, Guidance};
use daps_metrics::wasserstein::{directions, sliced_w1};
use daps_operators::Dense;
use daps_priors::{Analytic, GaussianMixture, Posterior};
use serde::{Deserialize, Serialize};

/// Modes along each of the two directions.
const SIDE: i32 = 5;
/// Distance of neighbouring modes.
const SPACING: f64 = 8.0;
/// Random directions of the sliced distance.
const SLICES: usize = 100;
/// Rows that run at once; results do not depend on it, memory does.
const BATCH: usize = 250;

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Samples per problem.
    pub samples: usize,
    /// Annealing levels from 200 to 0.01.
    pub levels: usize,
    /// Names of methods; see [`METHODS`].
    pub methods: Vec<String>,
    /// Seed of everything that is random.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let methods = METHODS.iter().map(|m| m.name.to_owned()).collect();
        Self { samples: 1000, levels: 100, methods, seed: 0 }
    }
}

/// A method of the test bed.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    build: Option<fn(levels: usize) -> Arc<dyn Method>>,
}

/// All methods of the test bed.
pub const METHODS: &[Entry] = &[
    Entry {
        name: "dps",
        summary: "DPS, ancestral, guidance by the norm of the residual with zeta = 1",
        build: Some(|levels| {
            let (dynamics, guidance) = (Dynamics::Sde, Guidance::default());
            Arc::new(Dps { schedule: schedule(levels), dynamics, guidance })
        }),
    },
    Entry {
        name: "daps-shipped",
        summary: "ODE endpoint, r = sigma, 100 Langevin steps of eta0 = 1e-4, cut at the edge of stability",
        build: Some(|levels| {
            let step_size = StepSize::Decay { eta0: 1e-4, delta: 0.01, by: DecayBy::Index, cut: Some(1.9) };
            daps(levels, ode_endpoint(), KernelConfig::Langevin(Langevin { steps: 100, step_size }))
        }),
    },
    Entry {
        name: "daps-stable",
        summary: "ODE endpoint, r = sigma, 100 Langevin steps of 0.5 over the target's largest eigenvalue",
        build: Some(|levels| {
            let step_size = StepSize::Curvature { factor: 0.5 };
            daps(levels, ode_endpoint(), KernelConfig::Langevin(Langevin { steps: 100, step_size }))
        }),
    },
    Entry {
        name: "exact-sigma",
        summary: "ODE endpoint, r = sigma, exact draw",
        build: Some(|levels| daps(levels, ode_endpoint(), exact())),
    },
    Entry {
        name: "tweedie-scalar",
        summary: "Tweedie mean, scalar Tweedie covariance, exact draw",
        build: Some(|levels| daps(levels, tweedie(CovarianceKind::Scalar), exact())),
    },
    Entry {
        name: "tweedie-full",
        summary: "Tweedie mean, full Tweedie covariance, exact draw",
        build: Some(|levels| daps(levels, tweedie(CovarianceKind::Full), exact())),
    },
    Entry {
        name: "draws-32",
        summary: "32 draws of p(x0 | x_t), one kept by its likelihood",
        build: Some(|levels| daps(levels, Estimate::Draws { count: 32 }, exact())),
    },
    Entry {
        name: "oracle",
        summary: "the exact conditional p(x0 | x_t, y): what the decoupled loop itself costs",
        build: Some(|levels| daps(levels, Estimate::Exact, exact())),
    },
    Entry { name: "floor", summary: "a second set of exact posterior samples", build: None },
];

fn schedule(levels: usize) -> ScheduleRule {
    ScheduleRule::Poly { levels, max: 200.0, min: 0.01, rho: RHO }
}

fn ode_endpoint() -> Estimate {
    let ode =
        Ode { steps: OdeSteps::Fixed(5), min: 0.01, rho: RHO, end: OdeEnd::Zero, order: OdeOrder::Euler };
    Estimate::Gaussian { center: Center::Ode(ode), spread: Spread::Sigma }
}

fn tweedie(kind: CovarianceKind) -> Estimate {
    Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Covariance(kind) }
}

fn exact() -> KernelConfig {
    KernelConfig::Exact(Exact::default())
}

fn daps(levels: usize, estimate: Estimate, kernel: KernelConfig) -> Arc<dyn Method> {
    Arc::new(Daps { beta: None, schedule: schedule(levels), estimate, kernel })
}

/// A problem: the mixture's weights and the measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instance {
    /// Dimension of x.
    pub dim: usize,
    /// Numbers measured.
    pub obs: usize,
    /// What it was made from; also keys the randomness of the runs.
    pub seed: u64,
    /// Weights of the 25 components.
    pub weights: Vec<f64>,
    /// V: `obs x dim`, orthonormal rows.
    pub v: Vec<Vec<f64>>,
    /// Singular values.
    pub singular: Vec<f64>,
    /// Standard deviation of the noise.
    pub sigma_y: f64,
    /// The measurement.
    pub y: Vec<f64>,
    /// Recorded W1 of each method, where another program has run the problem.
    #[serde(default)]
    pub w1: std::collections::BTreeMap<String, f64>,
}

impl Instance {
    /// A random problem.
    pub fn random(dim: usize, obs: usize, seed: u64) -> Result<Self> {
        if obs == 0 || obs > dim {
            return Err(Error::Config(format!("obs: expected 1 to {dim}, the dimension, got {obs}")));
        }
        let row = Row { measurement: dim as u64, chain: obs as u64 };
        let mut rng = Noise::new(seed, vec![row]).stream(0, Address::new(0, Purpose::Instance, 0));
        let mut normal = |n: usize| {
            let mut z = vec![0.0; n];
            fill_normal(&mut rng, &mut z);
            z
        };
        let squares: Vec<f64> = normal((SIDE * SIDE) as usize).iter().map(|z| z * z).collect();
        let total: f64 = squares.iter().sum();
        let weights: Vec<f64> = squares.iter().map(|s| s / total).collect();
        // Random rows, made orthonormal, are uniformly distributed.
        let rows: Vec<Vec<f64>> = (0..obs).map(|_| normal(dim)).collect();
        let v = super::orthonormal(&rows);
        let noise = normal(obs);
        let mut singular: Vec<f64> = (0..obs).map(|_| open01(&mut rng)).collect();
        singular.sort_by(|a, b| b.total_cmp(a));
        let sigma_y = open01(&mut rng) * singular[0];
        let mut instance =
            Self { dim, obs, seed, weights, v, singular, sigma_y, y: vec![], w1: Default::default() };
        let truth = instance.prior()?.mixture().sample(&mut rng);
        instance.y = (0..obs)
            .map(|i| {
                let projected: f64 = instance.v[i].iter().zip(&truth).map(|(v, x)| v * x).sum();
                instance.singular[i] * projected + sigma_y * noise[i]
            })
            .collect();
        Ok(instance)
    }

    fn check(&self) -> Result<()> {
        let modes = (SIDE * SIDE) as usize;
        let sizes_fit = self.weights.len() == modes
            && self.v.len() == self.obs
            && self.v.iter().all(|row| row.len() == self.dim)
            && self.singular.len() == self.obs
            && self.y.len() == self.obs
            && self.dim >= 1
            && self.obs >= 1;
        if sizes_fit {
            return Ok(());
        }
        Err(Error::Config(format!(
            "instance {} of ({}, {}): expected {modes} weights, {} rows of {} numbers, and as many singular values and measurements as rows",
            self.seed, self.dim, self.obs, self.obs, self.dim
        )))
    }

    /// The mixture prior.
    pub fn prior(&self) -> Result<GaussianMixture> {
        let mut means = Vec::with_capacity(self.weights.len() * self.dim);
        for i in -SIDE / 2..=SIDE / 2 {
            for j in -SIDE / 2..=SIDE / 2 {
                let pair = [-SPACING * f64::from(i), -SPACING * f64::from(j)];
                means.extend((0..self.dim).map(|k| pair[k % 2]));
            }
        }
        let log_weights = self.weights.iter().map(|w| w.ln()).collect();
        let mixture = Mixture::new(log_weights, means, Arc::new(vec![RowCovariance::Scalar(1.0)]))?;
        Ok(GaussianMixture::new(&[self.dim], mixture)?)
    }

    /// The likelihood of `rows` chains.
    pub fn likelihood(&self, rows: usize) -> Result<Gaussian> {
        let matrix: Vec<f64> =
            self.v.iter().zip(&self.singular).flat_map(|(v, s)| v.iter().map(move |v| s * v)).collect();
        let matrix = Tensor::from_vec(matrix, (1, self.obs, self.dim), &Device::Cpu)?;
        let operator = Dense::new(&[self.dim], &matrix)?;
        let y: Vec<f64> = self.y.iter().copied().cycle().take(rows * self.obs).collect();
        let y = Tensor::from_vec(y, (rows, self.obs), &Device::Cpu)?;
        Ok(Gaussian::new(Arc::new(operator), y, self.sigma_y)?)
    }
}

/// What a method did on a problem.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The method.
    pub method: String,
    /// Dimension of the problem.
    pub dim: usize,
    /// Numbers measured.
    pub obs: usize,
    /// The problem's seed.
    pub seed: u64,
    /// Mean sliced W1 to exact posterior samples.
    pub w1: f64,
    /// W1 that another program recorded for the method on this problem.
    pub recorded: Option<f64>,
    /// Denoiser calls per sample.
    pub nfe: usize,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Chains that diverged and are left out of W1.
    pub diverged: usize,
}

/// The first two coordinates of samples, for a picture.
pub struct Cloud {
    /// The method, or `posterior`.
    pub name: String,
    /// Points.
    pub points: Vec<[f64; 2]>,
}

/// Runs every method on every problem.
pub fn run(
    instances: &[Instance],
    settings: &Settings,
    progress: &mut dyn Progress,
) -> Result<(Vec<Score>, Vec<Cloud>)> {
    if settings.samples < 2 {
        return Err(Error::Config(format!("samples: expected at least 2, got {}", settings.samples)));
    }
    if settings.levels == 0 {
        return Err(CoreError::invalid("levels", "at least 1", 0).into());
    }
    let mut entries = Vec::new();
    for name in &settings.methods {
        let entry = METHODS.iter().find(|m| m.name == *name);
        entries.push(entry.ok_or_else(|| {
            CoreError::unknown("method of the test bed", name, METHODS.iter().map(|m| m.name))
        })?);
    }
    instances.iter().try_for_each(Instance::check)?;
    progress.begin("mixture test bed", instances.len() * entries.len());
    let (mut scores, mut clouds) = (Vec::new(), Vec::new());
    for (number, instance) in instances.iter().enumerate() {
        let problem = TestBed::new(instance, settings)?;
        if number == 0 {
            clouds.push(problem.cloud("posterior", &problem.reference));
        }
        for entry in &entries {
            let (score, samples) = problem.score(entry)?;
            if number == 0 {
                clouds.push(problem.cloud(entry.name, &samples));
            }
            let note = format!(
                "({}, {}) seed {} {}: W1 {:.3}",
                score.dim, score.obs, score.seed, score.method, score.w1
            );
            scores.push(score);
            if progress.step(&note).is_break() {
                return Err(Error::Config("stopped on request".into()));
            }
        }
    }
    progress.end();
    Ok((scores, clouds))
}

/// A problem with its exact answer.
struct TestBed<'a> {
    instance: &'a Instance,
    settings: &'a Settings,
    prior: Arc<dyn Denoiser>,
    posterior: Posterior,
    reference: Vec<f64>,
    noise: Noise,
}

impl<'a> TestBed<'a> {
    fn new(instance: &'a Instance, settings: &'a Settings) -> Result<Self> {
        let prior = instance.prior()?;
        let posterior = prior.posterior(&instance.likelihood(1)?, 0)?;
        let rows =
            (0..settings.samples as u64).map(|chain| Row { measurement: instance.seed, chain }).collect();
        let noise = Noise::new(settings.seed, rows);
        let reference = to_f64(&posterior.draw(&noise, Address::new(0, Purpose::Reference, 0))?)?;
        Ok(Self { instance, settings, prior: Arc::new(prior), posterior, reference, noise })
    }

    fn score(&self, entry: &Entry) -> Result<(Score, Vec<f64>)> {
        let start = Instant::now();
        let (samples, nfe, diverged) = match entry.build {
            None => {
                let second = self.posterior.draw(&self.noise, Address::new(0, Purpose::Reference, 1))?;
                (to_f64(&second)?, 0, 0)
            }
            Some(build) => self.sample(&*build(self.settings.levels))?,
        };
        let seconds = start.elapsed().as_secs_f64();
        let slices = directions(self.settings.seed, SLICES, self.instance.dim)?;
        let w1 = sliced_w1(&samples, &self.reference, self.instance.dim, &slices)?;
        let score = Score {
            method: entry.name.to_owned(),
            dim: self.instance.dim,
            obs: self.instance.obs,
            seed: self.instance.seed,
            w1,
            recorded: self.instance.w1.get(entry.name).copied(),
            nfe,
            seconds,
            diverged,
        };
        Ok((score, samples))
    }

    /// Samples of the chains that did not diverge, denoiser calls, and how many diverged.
    fn sample(&self, method: &dyn Method) -> Result<(Vec<f64>, usize, usize)> {
        let (mut values, mut nfe, mut lost) = (Vec::new(), 0, 0);
        let rows: Vec<usize> = (0..self.settings.samples).collect();
        for rows in rows.chunks(BATCH) {
            let likelihood: Arc<dyn Likelihood> = Arc::new(self.instance.likelihood(rows.len())?);
            let task = Problem::new(self.prior.clone(), likelihood)?;
            let samples = method.sample(&task, &self.noise.select(rows), None, &mut ())?;
            nfe = samples.cost.nfe;
            let x = to_f64(&samples.x)?;
            for (row, diverged) in x.chunks(self.instance.dim).zip(&samples.diverged) {
                if *diverged { lost += 1 } else { values.extend_from_slice(row) }
            }
        }
        Ok((values, nfe, lost))
    }

    fn cloud(&self, name: &str, samples: &[f64]) -> Cloud {
        let points = samples.chunks(self.instance.dim).map(|x| [x[0], x[1 % self.instance.dim]]).collect();
        Cloud { name: name.to_owned(), points }
    }
}

/// A row of the printed table: one method on one problem size.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The method.
    pub method: String,
    /// Dimension.
    pub dim: usize,
    /// Numbers measured.
    pub obs: usize,
    /// Mean of W1 over problems.
    pub w1: f64,
    /// Its standard error.
    pub se: f64,
    /// Denoiser calls per sample.
    pub nfe: usize,
    /// Seconds per problem.
    pub seconds: f64,
    /// Chains that diverged, over all problems.
    pub diverged: usize,
    /// Mean and standard error of W1 minus the recorded W1, over problems that have one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minus_recorded: Option<(f64, f64)>,
}

/// One row per problem size and method, in the order in which they first occur.
#[must_use]
pub fn summarise(scores: &[Score]) -> Vec<Summary> {
    let mut keys: Vec<(usize, usize, &str)> = Vec::new();
    for s in scores {
        let key = (s.dim, s.obs, s.method.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.iter()
        .map(|&(dim, obs, method)| {
            let mine: Vec<&Score> =
                scores.iter().filter(|s| (s.dim, s.obs, s.method.as_str()) == (dim, obs, method)).collect();
            let values = |f: fn(&Score) -> f64| mine.iter().map(|s| f(s)).collect::<Vec<_>>();
            let (w1, se) = super::mean_and_error(&values(|s| s.w1));
            let paired: Vec<f64> = mine.iter().filter_map(|s| Some(s.w1 - s.recorded?)).collect();
            Summary {
                method: method.to_owned(),
                dim,
                obs,
                w1,
                se,
                nfe: mine[0].nfe,
                seconds: super::mean_and_error(&values(|s| s.seconds)).0,
                diverged: mine.iter().map(|s| s.diverged).sum(),
                minus_recorded: (!paired.is_empty()).then(|| super::mean_and_error(&paired)),
            }
        })
        .collect()
}
