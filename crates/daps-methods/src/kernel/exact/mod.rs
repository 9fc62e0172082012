//! Exact draws of p(x0 | x_t) p(y | x0): one kernel that finds the way which the prior's estimate and the operator allow.

mod conjugate_gradient;
mod dense;
mod diagonal;
mod frequency;
mod groups;
mod measured;
mod pixelwise;
mod spectral;
mod weighted;

pub(crate) use groups::check_groups;

use daps_core::candle::{DType, Tensor};
use daps_core::tensors::batched;
use daps_core::{
    Approx, ChainInfo, Conditional, Covariance, Error, Gaussian, Kernel, Linear, Need, Noise, Result, Step,
};
use serde::{Deserialize, Serialize};

use super::Registered;
use super::metropolis::keep_accepted;
use crate::checks::check_some;

/// An exact draw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exact {
    /// Which way to take.
    pub way: Way,
    /// Relative residual at which conjugate gradients stop.
    pub tolerance: f64,
    /// By frequency: the RMS error at which conjugate gradients stop, in deviations of what the draw and the noise that the
    /// next level adds to it have together.
    pub error: f64,
    /// Iterations after which conjugate gradients give up with an error.
    pub max_iterations: usize,
}

/// The ways to an exact draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// The fastest that applies.
    #[default]
    Auto,
    /// Perturb-and-MAP with conjugate gradients, for any linear operator.
    ConjugateGradient,
}

impl Default for Exact {
    fn default() -> Self {
        Self { way: Way::Auto, tolerance: 1e-5, error: 1e-3, max_iterations: 20_000 }
    }
}

impl Exact {
    /// The mean of N(mean, covariance) given y through a linear operator: the draw with all its noise set to zero. With one
    /// variance it is the minimiser of ‖Ax - y‖²/(2β²) + ‖x - mean‖²/(2 variance), the proximal point of the likelihood.
    pub fn mean(
        &self,
        mean: &Tensor,
        covariance: &Covariance,
        likelihood: &Gaussian,
        step: &Step,
    ) -> Result<(Tensor, ChainInfo)> {
        let operator = likelihood.operator();
        if operator.as_linear().is_none() {
            return Err(Error::missing("a proximal step", "a linear operator", operator.name()));
        }
        let by_modes = matches!(covariance, Covariance::Scalar(_))
            && likelihood.beta_rows().is_some()
            && self.way == Way::Auto;
        let spectral = operator.as_spectral().filter(|_| by_modes);
        let perturbation = match spectral {
            Some(spectral) => vec![spectral.singular()[0].len()],
            None => operator.output_shape().to_vec(),
        };
        let rows = mean.dims()[0];
        let zeros = Tensor::zeros(batched(rows, &perturbation), mean.dtype(), mean.device())?;
        // Twice, for rows that are drawn in two ways.
        let (still, silent) = (mean.zeros_like()?, zeros);
        let silence = Noise::scripted(rows, [still.clone(), silent.clone(), still, silent]);
        // A proximal point has its own scale, which no noise gives: it is found to the tolerance.
        let by_tolerance = matches!(covariance, Covariance::Scalar(_));
        self.draw_gaussian(mean, covariance, likelihood, (&silence, step), by_tolerance)
    }

    fn draw_gaussian(
        &self,
        mean: &Tensor,
        covariance: &Covariance,
        likelihood: &Gaussian,
        (noise, step): (&Noise, &Step),
        by_tolerance: bool,
    ) -> Result<(Tensor, ChainInfo)> {
        let operator = likelihood.operator();
        if let (Some(pixelwise), false) =
            (operator.as_pixelwise(), matches!(covariance, Covariance::Dense(_)))
        {
            return pixelwise::draw(mean, covariance, likelihood, pixelwise.pieces(), noise, step);
        }
        let Some(linear) = operator.as_linear() else {
            return Err(Error::missing("exact", "a linear or pixelwise operator", operator.name()));
        };
        if matches!(covariance, Covariance::Dense(_)) {
            return dense::draw_gaussian(mean, covariance, likelihood, noise, step);
        }
        let by_frequency = matches!(covariance, Covariance::Frequency(_));
        if self.way == Way::Auto && !by_frequency {
            if let Some(entries) = linear.diagonal() {
                return diagonal::draw(mean, covariance, likelihood, entries, noise, step);
            }
            if let (Some(spectral), Covariance::Scalar(variance), Some(beta)) =
                (operator.as_spectral(), covariance, likelihood.beta_rows())
            {
                return spectral::draw(mean, variance, beta, likelihood.y(), spectral, noise, step);
            }
        }
        self.solved(mean, covariance, likelihood, linear, (noise, step), by_tolerance)
    }

    /// By conjugate gradients: rows with a clean measurement in f64, others in the type of the samples.
    fn solved(
        &self,
        mean: &Tensor,
        covariance: &Covariance,
        likelihood: &Gaussian,
        operator: &dyn Linear,
        at: (&Noise, &Step),
        by_tolerance: bool,
    ) -> Result<(Tensor, ChainInfo)> {
        let usual = |mean: &Tensor, y: &Gaussian, rows: &[bool], clean: bool| match covariance {
            Covariance::Frequency(c) => frequency::draw(self, (mean, c), y, operator, at, rows, clean),
            _ => conjugate_gradient::draw(self, (mean, covariance), y, operator, at, rows, clean),
        };
        let clean = match by_tolerance {
            true => vec![false; mean.dims()[0]],
            false => measured::clean_rows(covariance, likelihood, mean.dims()[0])?,
        };
        let others: Vec<bool> = clean.iter().map(|clean| !clean).collect();
        if !clean.contains(&true) {
            return usual(mean, likelihood, &others, false);
        }
        let (x, mut info) = match measured::Near::of(covariance, likelihood, operator)? {
            Some(near) => {
                let prior = (mean, covariance);
                measured::draw(self, prior, likelihood, operator, &near, at, &clean)?
            }
            None => {
                // What the next level adds hides so much; without it, thousands of iterations would go into it.
                let y = likelihood.with_more_noise(self.error * at.1.next)?;
                let (x, info) = usual(&mean.to_dtype(DType::F64)?, &y, &clean, true)?;
                (x.to_dtype(mean.dtype())?, info)
            }
        };
        if !others.contains(&true) {
            return Ok((x, info));
        }
        let (usual, more) = usual(mean, likelihood, &others, false)?;
        info.cost += more.cost;
        info.iterations = info.iterations.max(more.iterations);
        Ok((keep_accepted(&usual, &x, &clean)?, info))
    }
}

impl Registered for Exact {
    const NEEDS: &'static [Need] = &[Need::ConjugateOperator];

    fn check(&self) -> Result<()> {
        if !(self.tolerance > 0.0 && self.tolerance < 1.0) {
            return Err(Error::invalid("exact.tolerance", "a number between 0 and 1", self.tolerance));
        }
        if !(self.error > 0.0 && self.error < 1.0) {
            return Err(Error::invalid("exact.error", "a number between 0 and 1", self.error));
        }
        check_some("exact.max_iterations", self.max_iterations)?;
        Ok(())
    }
}

impl Kernel for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }

    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        if let Approx::Draws { points, log_weights } = target.approx {
            return weighted::draw(points, log_weights, target.likelihood, noise, step);
        }
        if let Approx::Sites { start, log_probs, symbols } = target.approx {
            return groups::draw(start, log_probs, *symbols, target.likelihood, noise, step);
        }
        let Some(likelihood) = target.likelihood.as_gaussian() else {
            return Err(Error::missing(self.name(), "Gaussian measurement noise", target.likelihood.name()));
        };
        match target.approx {
            Approx::Gaussian { mean, covariance, .. } => {
                self.draw_gaussian(mean, covariance, likelihood, (noise, step), false)
            }
            Approx::Mixture { rows, shape } => dense::draw_mixture(rows, shape, likelihood, noise, step),
            Approx::Score { .. } | Approx::Draws { .. } | Approx::Sites { .. } => {
                Err(Error::missing(self.name(), "p(x0 | x_t) in closed form", target.approx.name()))
            }
        }
    }
}

/// Diagnostics of a draw that cannot diverge.
fn info(rows: usize, operator_calls: usize) -> ChainInfo {
    let cost = daps_core::Cost { nfe: 0, operator_calls };
    ChainInfo { diverged: vec![false; rows], cost, ..ChainInfo::default() }
}
