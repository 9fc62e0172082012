//! What every method gives, with its default settings, where the posterior is known: how far means and variances are off.
//!
//! Nothing here passes or fails: the methods' own laws are tested elsewhere, and most of them do not claim the posterior's.

use std::sync::Arc;

use daps::progress::Progress;
use daps::{Error, Result};
use daps_core::tensors::to_f64;
use daps_core::{Method, Noise, Problem};
use daps_methods::registry::METHODS;
use daps_methods::{Facts, MethodConfig};
use daps_metrics::moments::Moments;
use serde::Serialize;

use super::law::Normal;
use super::{DIM, NOISE, OBS, Settings, TestBed, rms_distance, tweedie_table};

/// The name of the row that every other is to be measured with.
pub const EXACT: &str = "exact draws";

/// How far a method is from the posterior.
#[derive(Clone, Debug, Serialize)]
pub struct Rival {
    /// The method, or [`EXACT`].
    pub name: String,
    /// RMS over modes of the 2-Wasserstein distance to the posterior, from means and variances of the chains.
    pub distance: f64,
    /// RMS over modes of the error of the mean, in the posterior's standard deviations.
    pub mean_error: f64,
    /// Variance over the posterior's, mean over the modes that are measured.
    pub measured: f64,
    /// The same over those that nothing measures.
    pub hidden: f64,
    /// Denoiser calls per sample.
    pub nfe: usize,
    /// Chains that diverged; they are left out.
    pub diverged: usize,
}

impl TestBed {
    fn rival(&self, name: &str, method: &dyn Method, task: &Problem) -> Result<Rival> {
        let n = self.settings.samples;
        let samples = method.sample(task, &Noise::chains(self.settings.seed, n), None, &mut ())?;
        let values = to_f64(&samples.x)?;
        let kept = values.chunks(DIM).zip(&samples.diverged).filter(|(_, lost)| !**lost);
        let along = self.coordinates(&kept.flat_map(|(x, _)| x).copied().collect::<Vec<_>>());
        let moments = Moments::new(&along, DIM)?;
        let found: Vec<Normal> = (0..DIM)
            .map(|k| Normal { mean: moments.mean[k], variance: moments.covariance[k * DIM + k] })
            .collect();
        let posterior: Vec<Normal> = self.modes(&self.y).iter().map(|m| m.posterior(NOISE)).collect();
        let pairs = || found.iter().zip(&posterior);
        let ratios: Vec<f64> = pairs().map(|(f, p)| f.variance / p.variance).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let off: Vec<f64> = pairs().map(|(f, p)| (f.mean - p.mean).powi(2) / p.variance).collect();
        Ok(Rival {
            name: name.to_owned(),
            distance: rms_distance(&found, &posterior),
            mean_error: mean(&off).sqrt(),
            measured: mean(&ratios[..OBS]),
            hidden: mean(&ratios[OBS..]),
            nfe: samples.cost.nfe,
            diverged: samples.diverged.iter().filter(|d| **d).count(),
        })
    }
}

/// Exact draws, then every method of the registry that fits the problem, with its default settings.
pub fn run(settings: Settings, progress: &mut dyn Progress) -> Result<Vec<Rival>> {
    settings.check()?;
    let problem = TestBed::new(settings)?;
    let likelihood = problem.likelihood(&problem.y, settings.samples, NOISE)?;
    let task = Problem::new(problem.prior.clone(), Arc::new(likelihood))?;
    let mut methods: Vec<(&str, Arc<dyn Method>)> =
        vec![(EXACT, Arc::new(tweedie_table(&problem.prior, 1)?))];
    for entry in METHODS {
        let method = MethodConfig::named(entry.name)?.build(&Facts::of(&*task.likelihood))?;
        if method.check(&task).is_ok() {
            methods.push((entry.name, method));
        }
    }
    progress.begin("methods on a Gaussian prior", methods.len());
    let mut rivals = Vec::new();
    for (name, method) in &methods {
        rivals.push(problem.rival(name, &**method, &task)?);
        if progress.step(name).is_break() {
            return Err(Error::Config("stopped on request".into()));
        }
    }
    progress.end();
    Ok(rivals)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The floor is chance, every method that fits is there, and what is known of two of them shows: the pseudo-inverse has no
    /// variance at all, and DPnP, which stops at a coupling of 0.1, is wider than the posterior where it is measured.
    #[test]
    fn exact_draws_are_the_floor() {
        let settings = Settings { samples: 1000, ..Settings::default() };
        let rivals = run(settings, &mut ()).unwrap();
        let of = |name: &str| rivals.iter().find(|r| r.name == name).unwrap();
        let floor = of(EXACT);
        assert!(floor.mean_error < 0.1 && floor.distance < 0.02, "{floor:?}");
        assert!((floor.measured - 1.0).abs() < 0.1 && (floor.hidden - 1.0).abs() < 0.15, "{floor:?}");
        for name in
            ["daps", "dps", "ddrm", "ddnm", "diffpir", "red_diff", "dcdp", "fps_smc", "dpnp", "pnp_dm"]
        {
            assert!(of(name).distance > floor.distance, "{:?} beside {floor:?}", of(name));
        }
        let plain = of("pseudo_inverse");
        assert!(plain.measured < 1e-20 && plain.hidden < 1e-20 && plain.nfe == 0, "{plain:?}");
        assert!(of("dpnp").measured > 1.5, "{:?}", of("dpnp"));
    }
}
