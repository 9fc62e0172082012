//! Everything that a Gaussian prior lets us know exactly: kernels against their conditionals, presets against their own
//! law, and Tweedie with r(σ) against the true posterior.

pub mod law;
pub mod rivals;

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use daps::progress::Progress;
use daps::{Error, Result};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Approx, Center, Conditional, Covariance, CovarianceKind, Estimate, Gaussian, Method, Noise,
    Problem, Purpose, RHO, Row, RowCovariance, Schedule, ScheduleRule, Spread, Step,
};
use daps_methods::kernel::{
    Exact, Hmc, KernelConfig, Langevin, Mala, Metropolis, Replay, StepSize, Underdamped, Way,
};
use daps_methods::{BUDGETS, Daps, Facts, PRESETS, PresetInfo};
use daps_metrics::calibration::{Coverage, rank};
use daps_metrics::moments::Moments;
use daps_metrics::special::max_z_bound;
use daps_operators::Dense;
use daps_priors::GaussianMixture;
use serde::Serialize;

use law::{Affine, Mode, Normal, Target};

/// Dimension of the problem.
const DIM: usize = 8;
/// Singular values of the operator; two directions are not measured at all.
const SINGULAR: [f64; DIM] = [1.0, 0.8, 0.6, 0.4, 0.2, 0.05, 0.0, 0.0];
/// Rows of the operator: those with a singular value.
const OBS: usize = 6;
/// The prior: N(0.1, 0.5²) in every direction.
const PRIOR_MEAN: f64 = 0.1;
const PRIOR_STD: f64 = 0.5;
/// True noise of the measurement.
const NOISE: f64 = 0.05;
/// Chance that a correct program fails any one check.
const P: f64 = 1e-4;
/// Posterior draws behind a credible interval: with 99, order statistics enclose 50 % and 90 % exactly.
const DRAWS: usize = 99;

/// How much to run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Chains behind every moment.
    pub samples: usize,
    /// Credible intervals behind every coverage, at least.
    pub intervals: usize,
    /// Seed of everything that is random.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { samples: 20_000, intervals: 5_600, seed: 0 }
    }
}

impl Settings {
    fn check(&self) -> Result<()> {
        if self.samples < 100 {
            return Err(Error::Config(format!("samples: expected at least 100, got {}", self.samples)));
        }
        if self.intervals == 0 {
            return Err(Error::Config("intervals: expected at least 1, got 0".into()));
        }
        Ok(())
    }
}

/// One comparison of simulated moments with a closed form.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Kernel, preset or posterior.
    pub group: &'static str,
    /// What was run.
    pub name: String,
    /// What it was compared with.
    pub against: &'static str,
    /// Largest |z| of the means.
    pub mean_z: f64,
    /// Largest |z| of the variances and covariances.
    pub covariance_z: f64,
    /// The |z| that the largest of so many numbers exceeds with a chance of 1e-4.
    pub limit: f64,
    /// RMS over modes of the 2-Wasserstein distance between what was run and the exact answer, from closed forms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distance: Option<f64>,
    /// Share of accepted proposals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acceptance: Option<f64>,
    /// Whether every |z| is below the limit.
    pub passed: bool,
}

/// How often credible intervals held the truth.
#[derive(Clone, Debug, Serialize)]
pub struct CoverageRow {
    /// What was run.
    pub name: String,
    /// The share that should hold it.
    pub nominal: f64,
    /// The share that did.
    pub observed: f64,
    /// Binomial standard error.
    pub se: f64,
    /// Independent intervals.
    pub intervals: usize,
    /// Whether the difference is within 3.9 standard errors (a chance of 1e-4).
    pub passed: bool,
}

/// All results.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Comparisons of moments.
    pub checks: Vec<Check>,
    /// Coverage of credible intervals.
    pub coverage: Vec<CoverageRow>,
}

impl Report {
    /// Whether everything agreed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|c| c.passed) && self.coverage.iter().all(|c| c.passed)
    }
}

/// The problem: an orthonormal basis, the operator diag(s)Vᵀ in it, and a measurement.
struct TestBed {
    /// Rows are the modes, an orthonormal basis of the whole space.
    basis: Vec<Vec<f64>>,
    operator: Arc<Dense>,
    prior: Arc<GaussianMixture>,
    y: Vec<f64>,
    settings: Settings,
}

impl TestBed {
    fn new(settings: Settings) -> Result<Self> {
        let at = Address::new(0, Purpose::Instance, 0);
        let random = to_f64(&Noise::chains(settings.seed, DIM + 2).normal(at, &[DIM], DType::F64)?)?;
        let rows: Vec<&[f64]> = random.chunks(DIM).collect();
        let basis = super::orthonormal(&rows[..DIM]);
        let matrix: Vec<f64> =
            basis[..OBS].iter().zip(SINGULAR).flat_map(|(v, s)| v.iter().map(move |v| s * v)).collect();
        let operator = Dense::new(&[DIM], &Tensor::from_vec(matrix, (1, OBS, DIM), &Device::Cpu)?)?;
        let covariance = RowCovariance::Scalar(PRIOR_STD.powi(2));
        let prior = GaussianMixture::gaussian(&[DIM], vec![PRIOR_MEAN; DIM], covariance)?;
        let truth: Vec<f64> = rows[DIM].iter().map(|z| PRIOR_MEAN + PRIOR_STD * z).collect();
        let y = measure(&basis, &truth, rows[DIM + 1]);
        Ok(Self { basis, operator: Arc::new(operator), prior: Arc::new(prior), y, settings })
    }

    fn modes(&self, y: &[f64]) -> Vec<Mode> {
        (0..DIM)
            .map(|k| Mode {
                mean: PRIOR_MEAN * self.basis[k].iter().sum::<f64>(),
                variance: PRIOR_STD.powi(2),
                singular: SINGULAR[k],
                y: y.get(k).copied().unwrap_or(0.0),
                largest: SINGULAR[0],
            })
            .collect()
    }

    fn likelihood(&self, y: &[f64], rows: usize, beta: f64) -> Result<Gaussian> {
        let y: Vec<f64> = y.iter().copied().cycle().take(rows * OBS).collect();
        let y = Tensor::from_vec(y, (rows, OBS), &Device::Cpu)?;
        Ok(Gaussian::new(self.operator.clone(), y, beta)?)
    }

    /// Coordinates of row-major samples along the modes.
    fn coordinates(&self, samples: &[f64]) -> Vec<f64> {
        let along = |x: &[f64], v: &Vec<f64>| x.iter().zip(v).map(|(x, v)| x * v).sum::<f64>();
        samples.chunks(DIM).flat_map(|x| self.basis.iter().map(|v| along(x, v)).collect::<Vec<_>>()).collect()
    }

    /// Compares samples with independent normals along the modes.
    fn compare(&self, samples: &Tensor, law: &[Normal]) -> Result<(f64, f64, f64)> {
        let moments = Moments::new(&self.coordinates(&to_f64(samples)?), DIM)?;
        let mean: Vec<f64> = law.iter().map(|l| l.mean).collect();
        let mut covariance = vec![0.0; DIM * DIM];
        law.iter().enumerate().for_each(|(k, l)| covariance[k * DIM + k] = l.variance);
        let comparison = moments.compare(&mean, &covariance)?;
        Ok((comparison.mean_z, comparison.covariance_z, max_z_bound(comparison.count, P)))
    }

    /// A kernel from a fixed estimate, against its own law or the conditional itself.
    fn kernel(&self, name: &str, config: &KernelConfig) -> Result<Check> {
        let (spread, beta) = (0.3f64, 0.1);
        let step = Step { index: 0, of: 10, start: 1.0, sigma: spread, next: 0.2 };
        let n = self.settings.samples;
        let noise = Noise::chains(self.settings.seed, n);
        let start: Vec<f64> = (0..DIM).map(|i| 0.3 - 0.1 * i as f64).collect();
        let along = self.coordinates(&start);
        let mean = from_f64(start.iter().copied().cycle().take(n * DIM).collect(), &[n, DIM], DType::F64)?;
        let covariance = Covariance::Scalar(vec![spread * spread]);
        let approx = Approx::Gaussian { mean: mean.clone(), covariance, start: mean };
        let likelihood = self.likelihood(&self.y, n, beta)?;
        let target = Conditional { approx: &approx, likelihood: &likelihood };
        let (x, info) = config.build()?.draw(&target, &noise, &step)?;

        let mut own = Vec::new();
        let mut exact = Vec::new();
        let mut linear = true;
        for (mode, center) in self.modes(&self.y).iter().zip(along) {
            let (singular, y, largest) = (mode.singular, mode.y, mode.largest);
            let target = Target { spread: spread * spread, singular, y, beta, largest };
            let normal = |a: Affine| Normal { mean: a.gain * center + a.shift, variance: a.noise.powi(2) };
            exact.push(normal(target.conditional()));
            match target.kernel(config, &step) {
                Some(affine) => own.push(normal(affine)),
                None => linear = false,
            }
        }
        let law = if linear { &own } else { &exact };
        let (mean_z, covariance_z, limit) = self.compare(&x, law)?;
        Ok(Check {
            group: "kernel",
            name: name.to_owned(),
            against: match config {
                KernelConfig::Langevin(_) | KernelConfig::Replay(_) | KernelConfig::Hmc(_) => "its own law",
                _ => "p(x0 | x_t, y)",
            },
            mean_z,
            covariance_z,
            limit,
            distance: linear.then(|| rms_distance(law, &exact)),
            acceptance: info.acceptance.map(|a| a.iter().sum::<f64>() / a.len() as f64),
            passed: mean_z <= limit && covariance_z <= limit,
        })
    }

    /// A whole run against its own law, with its distance from the true posterior.
    fn run(&self, group: &'static str, name: String, daps: &Daps, samples: usize) -> Result<Check> {
        let task = Problem::new(self.prior.clone(), Arc::new(self.likelihood(&self.y, samples, NOISE)?))?;
        let result = daps.sample(&task, &Noise::chains(self.settings.seed, samples), None, &mut ())?;
        let modes = self.modes(&self.y);
        let law: Vec<Normal> = modes.iter().map(|m| law::run(daps, m, NOISE)).collect::<Result<_>>()?;
        let posterior: Vec<Normal> = modes.iter().map(|m| m.posterior(NOISE)).collect();
        let (against, expected) = match group {
            "posterior" => ("p(x0 | y)", &posterior),
            _ => ("its own law", &law),
        };
        let (mean_z, covariance_z, limit) = self.compare(&result.x, expected)?;
        Ok(Check {
            group,
            name,
            against,
            mean_z,
            covariance_z,
            limit,
            distance: Some(rms_distance(&law, &posterior)),
            acceptance: None,
            passed: mean_z <= limit && covariance_z <= limit,
        })
    }

    /// Credible intervals of many measurements, each of a truth drawn from the prior.
    fn coverage(&self, name: &str, daps: &Daps) -> Result<Vec<CoverageRow>> {
        let measurements = self.settings.intervals.div_ceil(DIM);
        let rows: Vec<Row> = (0..measurements as u64)
            .flat_map(|measurement| (0..DRAWS as u64).map(move |chain| Row { measurement, chain }))
            .collect();
        let own = (0..measurements as u64).map(|measurement| Row { measurement, chain: 0 }).collect();
        let own = Noise::new(self.settings.seed, own);
        let normal = |purpose| to_f64(&own.normal(Address::new(0, purpose, 1), &[DIM], DType::F64)?);
        let (truths, errors) = (normal(Purpose::Instance)?, normal(Purpose::Measurement)?);
        let truths: Vec<f64> = truths.iter().map(|z| PRIOR_MEAN + PRIOR_STD * z).collect();
        let mut y = Vec::with_capacity(rows.len() * OBS);
        for (truth, error) in truths.chunks(DIM).zip(errors.chunks(DIM)) {
            let measured = measure(&self.basis, truth, error);
            (0..DRAWS).for_each(|_| y.extend_from_slice(&measured));
        }
        let y = Tensor::from_vec(y, (rows.len(), OBS), &Device::Cpu)?;
        let likelihood = Gaussian::new(self.operator.clone(), y, NOISE)?;
        let task = Problem::new(self.prior.clone(), Arc::new(likelihood))?;
        let samples = daps.sample(&task, &Noise::new(self.settings.seed + 1, rows), None, &mut ())?;
        let along = self.coordinates(&to_f64(&samples.x)?);
        let truths = self.coordinates(&truths);
        let mut ranks = Vec::with_capacity(measurements * DIM);
        for (truth, draws) in truths.chunks(DIM).zip(along.chunks(DRAWS * DIM)) {
            for k in 0..DIM {
                let draws: Vec<f64> = draws.iter().skip(k).step_by(DIM).copied().collect();
                ranks.push(rank(truth[k], &draws));
            }
        }
        [0.5, 0.9]
            .iter()
            .map(|&level| {
                let coverage = Coverage::of_ranks(level, &ranks, DRAWS)?;
                Ok(CoverageRow {
                    name: name.to_owned(),
                    nominal: coverage.nominal,
                    observed: coverage.rate(),
                    se: coverage.error(),
                    intervals: coverage.total,
                    passed: coverage.z().abs() <= max_z_bound(1, P),
                })
            })
            .collect()
    }
}

fn rms_distance(a: &[Normal], b: &[Normal]) -> f64 {
    (a.iter().zip(b).map(|(a, b)| a.w2(b).powi(2)).sum::<f64>() / a.len() as f64).sqrt()
}

/// y = diag(s)Vᵀx + noise, in the modes' order.
fn measure(basis: &[Vec<f64>], x: &[f64], normals: &[f64]) -> Vec<f64> {
    let along = |v: &[f64]| v.iter().zip(x).map(|(v, x)| v * x).sum::<f64>();
    (0..OBS).map(|k| SINGULAR[k] * along(&basis[k]) + NOISE * normals[k]).collect()
}

fn schedule(levels: usize) -> ScheduleRule {
    ScheduleRule::Poly { levels, max: 200.0, min: 0.01, rho: RHO }
}

/// Tweedie's mean with the prior's own r(σ) at the schedule's levels, and an exact draw.
fn tweedie_table(prior: &GaussianMixture, levels: usize) -> Result<Daps> {
    let rule = schedule(levels);
    let mut sigmas: Vec<f64> = Schedule::new(&rule)?.sigmas()[..levels].to_vec();
    sigmas.reverse();
    let spread = Spread::Table(prior.gaussian_spread(&sigmas)?);
    Ok(exact_daps(rule, Estimate::Gaussian { center: Center::Tweedie, spread }))
}

fn exact_daps(schedule: ScheduleRule, estimate: Estimate) -> Daps {
    Daps { beta: None, schedule, estimate, kernel: KernelConfig::Exact(Exact::default()) }
}

/// The kernels with settings that suit the problem's scale.
fn kernels() -> Vec<(&'static str, KernelConfig)> {
    let step = || StepSize::Curvature { factor: 0.3 };
    let walk = |steps, blocks, eta0| {
        KernelConfig::Metropolis(Metropolis { steps, warmup: 0, step_size: StepSize::decay(eta0), blocks })
    };
    vec![
        ("exact", KernelConfig::Exact(Exact::default())),
        (
            "exact, conjugate gradients",
            KernelConfig::Exact(Exact { way: Way::ConjugateGradient, tolerance: 1e-8, ..Exact::default() }),
        ),
        ("langevin", KernelConfig::Langevin(Langevin { steps: 100, step_size: step() })),
        ("replay", KernelConfig::Replay(Replay { steps: 100, step_size: step() })),
        ("hmc", KernelConfig::Hmc(Hmc { steps: 100, step_size: step(), momentum: 0.8 })),
        ("mala", KernelConfig::Mala(Mala { steps: 200, warmup: 40, c: 1.0 })),
        ("underdamped", KernelConfig::Underdamped(Underdamped { steps: 100, ..Underdamped::default() })),
        ("metropolis", walk(2000, 1, 0.01)),
        ("metropolis, 4 blocks", walk(2000, 4, 0.03)),
    ]
}

/// Runs all checks.
pub fn run(settings: Settings, progress: &mut dyn Progress) -> Result<Report> {
    settings.check()?;
    let problem = TestBed::new(settings)?;
    let kernels = kernels();
    let presets: Vec<&PresetInfo> = PRESETS.iter().filter(|p| !p.preset.is_ours()).collect();
    let (counts, posteriors) = ([1usize, 5, 30], [1usize, 5, 30]);
    let total = kernels.len() + presets.len() * (BUDGETS.len() + 2) + 2 * posteriors.len() + counts.len();
    progress.begin("Gaussian validation", total);
    // The steps of the paper's first task, which the closed forms follow whatever the matrix is.
    let tuned = Facts::of_task("super_resolution")?;
    let mut report = Report { checks: vec![], coverage: vec![] };
    let mut tick = |note: &str| match progress.step(note).is_break() {
        true => Err(Error::Config("stopped on request".into())),
        false => Ok(()),
    };
    for (name, config) in &kernels {
        report.checks.push(problem.kernel(name, config)?);
        tick(name)?;
    }
    for preset in presets {
        // Every budget by replay, which has the law of the loop; the loops themselves at one budget, on fewer chains.
        for budget in BUDGETS {
            let daps = preset.preset.daps(&tuned, Some(budget.name), "replay")?;
            let name = format!("{} DAPS-{}, replay", preset.name, budget.name);
            report.checks.push(problem.run("preset", name.clone(), &daps, settings.samples)?);
            tick(&name)?;
        }
        for kernel in ["langevin", "hmc"] {
            let daps = preset.preset.daps(&tuned, Some("100"), kernel)?;
            let name = format!("{} DAPS-100, {kernel}", preset.name);
            report.checks.push(problem.run("preset", name.clone(), &daps, settings.samples / 2)?);
            tick(&name)?;
        }
    }
    for levels in posteriors {
        let name = format!("Tweedie + r(sigma), {levels} levels");
        let daps = tweedie_table(&problem.prior, levels)?;
        report.checks.push(problem.run("posterior", name.clone(), &daps, settings.samples)?);
        tick(&name)?;
        let name = format!("Tweedie + full covariance, {levels} levels");
        let spread = Spread::Covariance(CovarianceKind::Full);
        let daps = exact_daps(schedule(levels), Estimate::Gaussian { center: Center::Tweedie, spread });
        report.checks.push(problem.run("posterior", name.clone(), &daps, settings.samples)?);
        tick(&name)?;
    }
    for levels in counts {
        let name = format!("Tweedie + r(sigma), {levels} levels");
        report.coverage.extend(problem.coverage(&name, &tweedie_table(&problem.prior, levels)?)?);
        tick(&name)?;
    }
    progress.end();
    Ok(report)
}
