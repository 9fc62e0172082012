//! The prior of continuous data: a denoiser, and the choice of how p(x0 | x_t) is estimated from it.

use std::sync::Arc;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use crate::mixture::choose;
use crate::tensors::{batched, check_rows, combine, from_f64, to_f64};
use crate::{
    Address, Approx, Cosines, Covariance, CovarianceKind, Denoiser, Error, Estimated, Frequency, Noise, Ode,
    Prior, Purpose, Result, Sigma, SpreadTable, Step, open01,
};

/// How p(x0 | x_t) is estimated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Estimate {
    /// N(center, spread²).
    Gaussian {
        /// Its centre.
        center: Center,
        /// Its spread.
        spread: Spread,
    },
    /// (x_t - x0)/σ² plus a score of the prior; chains start at `start`.
    Score {
        /// Where chains start.
        start: Center,
        /// Where the prior's score is taken.
        at: ScoreAt,
    },
    /// Draws of p(x0 | x_t), to be weighted by the likelihood; for priors that can draw.
    Draws {
        /// How many.
        count: usize,
    },
    /// p(x0 | x_t) itself, for analytic priors.
    Exact,
}

/// A point estimate of x0 from x_t.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Center {
    /// The endpoint of the probability-flow ODE.
    Ode(Ode),
    /// E[x0 | x_t].
    Tweedie,
}

/// The spread around a point estimate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// r = σ, as DAPS has it.
    Sigma,
    /// r(σ) as the prior itself knows it: its measured table, or the trace of Cov[x0 | x_t]; belongs to the Tweedie mean.
    Prior,
    /// Variances by frequency where the prior has measured them, times a factor; otherwise as `prior`; belongs to the Tweedie
    /// mean. They were measured on noisy pictures. What a sampler denoises is not quite one, and D errs more on it.
    Frequencies(f64),
    /// All that the prior has measured of its error: covariances of the channels by frequency, and where in the image it is larger.
    /// Otherwise as `prior`; belongs to the Tweedie mean.
    Bands(BandSpread),
    /// r(σ) from a table measured for the prior; belongs to the Tweedie mean.
    Table(SpreadTable),
    /// Cov[x0 | x_t] from a prior that knows it; belongs to the Tweedie mean.
    Covariance(CovarianceKind),
}

/// What to use of a prior's error by frequency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BandSpread {
    /// A factor of all variances. They were measured on noisy images. What a sampler denoises is not quite one, and D errs more on it.
    pub wider: f64,
    /// Whether channels are correlated as measured. Otherwise grey and differences of colour are independent.
    pub channels: bool,
    /// Whether the local factor is used, where the prior has one.
    pub local: bool,
    /// The factor in the place of `wider` where a prior has measured neither of these two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plain: Option<f64>,
}

impl Default for BandSpread {
    fn default() -> Self {
        Self { wider: 1.0, channels: true, local: true, plain: None }
    }
}

impl BandSpread {
    /// Independent channels, the same everywhere.
    fn uniform(wider: f64) -> Self {
        Self { wider, channels: false, local: false, plain: None }
    }

    /// The factors of the variances that it may come to.
    fn factors(&self) -> impl Iterator<Item = f64> {
        std::iter::once(self.wider).chain(self.plain)
    }
}

impl Spread {
    /// What is used by frequency, where it is by frequency.
    fn bands(&self) -> Option<BandSpread> {
        match self {
            Self::Frequencies(wider) => Some(BandSpread::uniform(*wider)),
            Self::Bands(bands) => Some(*bands),
            _ => None,
        }
    }
}

/// Where diffusion-score estimation takes the prior's score.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScoreAt {
    /// At the chain's own state, at a small level: a denoiser call for every kernel step.
    State {
        /// The small level.
        sigma: f64,
    },
    /// Frozen at (x_t, σ): `score-t`.
    Level,
    /// Frozen at (x̂0, σ_min): `score-min`.
    Start {
        /// The small level.
        sigma: f64,
    },
}

/// The prior of continuous data in the loop: a denoiser with an estimate.
#[derive(Clone)]
pub struct Continuous {
    model: Arc<dyn Denoiser>,
    estimate: Estimate,
    cosines: Option<Arc<Cosines>>,
}

impl Continuous {
    /// Checks that the denoiser has the powers that the estimate needs.
    pub fn new(model: Arc<dyn Denoiser>, estimate: Estimate, levels: usize) -> Result<Self> {
        let lacks = |needs| Err(Error::missing("the estimate", needs, "this prior"));
        match &estimate {
            Estimate::Gaussian { center: Center::Ode(ode), .. }
            | Estimate::Score { start: Center::Ode(ode), .. } => {
                ode.check(levels)?;
            }
            Estimate::Draws { count: 0 } => return Err(Error::invalid("draws.count", "at least 1", 0)),
            Estimate::Draws { .. } | Estimate::Exact if model.as_conditional().is_none() => {
                return lacks("p(x0 | x_t) in closed form");
            }
            _ => {}
        }
        match &estimate {
            Estimate::Gaussian {
                center: Center::Ode(_),
                spread:
                    Spread::Covariance(_)
                    | Spread::Table(_)
                    | Spread::Prior
                    | Spread::Frequencies(_)
                    | Spread::Bands(_),
            } => {
                return Err(Error::invalid(
                    "estimate.spread",
                    "'sigma' with the ODE endpoint (it is already a draw: a table or covariance belongs to the Tweedie mean)",
                    "a table or covariance",
                ));
            }
            Estimate::Gaussian { spread: Spread::Covariance(_), .. } if model.as_covariance().is_none() => {
                return lacks("Cov[x0 | x_t]");
            }
            Estimate::Gaussian { spread, .. }
                if let Some(bad) =
                    spread.bands().and_then(|b| b.factors().find(|f| !(f.is_finite() && *f > 0.0))) =>
            {
                return Err(Error::invalid("factor of the variances by frequency", "a positive number", bad));
            }
            Estimate::Gaussian {
                spread: Spread::Prior | Spread::Frequencies(_) | Spread::Bands(_), ..
            } => match model.as_spread() {
                Some(table) => table.check()?,
                None if model.as_covariance().is_none() => return lacks("r(sigma)"),
                None => {}
            },
            Estimate::Gaussian { spread: Spread::Table(table), .. } => table.check()?,
            Estimate::Score { at: ScoreAt::State { sigma } | ScoreAt::Start { sigma }, .. }
                if !(sigma.is_finite() && *sigma > 0.0) =>
            {
                return Err(Error::invalid("score sigma", "a positive number", sigma));
            }
            _ => {}
        }
        let by_frequency = matches!(&estimate, Estimate::Gaussian { spread, .. } if spread.bands().is_some())
            && model.as_spread().is_some_and(|table| table.bands.is_some());
        let cosines = by_frequency.then(|| Cosines::new(model.shape()).map(Arc::new)).transpose()?;
        Ok(Self { model, estimate, cosines })
    }

    fn center(&self, center: &Center, x_t: &Tensor, step: &Step) -> Result<(Tensor, usize)> {
        match center {
            Center::Ode(ode) => ode.solve(&*self.model, x_t, step),
            Center::Tweedie => Ok((self.model.denoise(x_t, &Sigma::Same(step.sigma))?, 1)),
        }
    }

    fn spread(&self, spread: &Spread, x_t: &Tensor, step: &Step) -> Result<Covariance> {
        match spread {
            Spread::Sigma => Ok(Covariance::Scalar(vec![step.sigma.powi(2)])),
            Spread::Prior => match (self.model.as_spread(), self.model.as_covariance()) {
                (Some(table), _) => self.spread(&Spread::Table(table.clone()), x_t, step),
                (None, Some(_)) => self.spread(&Spread::Covariance(CovarianceKind::Scalar), x_t, step),
                (None, None) => Err(Error::missing("the estimate", "r(sigma)", "this prior")),
            },
            Spread::Frequencies(_) | Spread::Bands(_) => {
                match (&self.cosines, self.model.as_spread(), spread.bands()) {
                    (Some(cosines), Some(table), Some(bands)) => {
                        self.by_frequency(cosines, table, bands, step.sigma).map(Covariance::Frequency)
                    }
                    _ => self.spread(&Spread::Prior, x_t, step),
                }
            }
            Spread::Table(table) => Ok(Covariance::Scalar(vec![table.at(step.sigma).powi(2)])),
            Spread::Covariance(kind) => match self.model.as_covariance() {
                Some(model) => model.covariance(x_t, &Sigma::Same(step.sigma), *kind),
                None => Err(Error::missing("the estimate", "Cov[x0 | x_t]", "this prior")),
            },
        }
    }

    /// The covariance by frequency that a table has at a level, without a local factor.
    fn by_frequency(
        &self,
        cosines: &Arc<Cosines>,
        table: &SpreadTable,
        bands: BandSpread,
        sigma: f64,
    ) -> Result<Frequency> {
        let correlated = table.bands.as_ref().is_some_and(|b| b.correlation.is_some());
        let plain = bands.plain.filter(|_| !correlated && self.model.as_local().is_none());
        let wider = plain.unwrap_or(bands.wider);
        if bands.channels && correlated {
            let spectrum = table.spectrum_at(sigma, cosines.shape()[0])?;
            return Frequency::correlated(Arc::clone(cosines), move |f, block| {
                spectrum.covariance(f, block);
                block.iter_mut().for_each(|v| *v *= wider);
            });
        }
        let mut variances = table.variances_at(sigma, cosines)?;
        variances.iter_mut().for_each(|v| *v *= wider);
        Frequency::new(Arc::clone(cosines), variances)
    }

    /// Mean, covariance, and the denoiser calls that they took.
    fn gaussian(
        &self,
        center: &Center,
        spread: &Spread,
        x_t: &Tensor,
        step: &Step,
    ) -> Result<(Tensor, Covariance, usize)> {
        let local = self.model.as_local().filter(|_| spread.bands().is_some_and(|b| b.local));
        let Some(local) = local.filter(|_| self.cosines.is_some()) else {
            let (mean, nfe) = self.center(center, x_t, step)?;
            return Ok((mean, self.spread(spread, x_t, step)?, nfe));
        };
        let (mean, factor) = local.denoise_local(x_t, step.sigma)?;
        let covariance = match self.spread(spread, x_t, step)? {
            Covariance::Frequency(c) => Covariance::Frequency(c.with_local(factor)?),
            other => other,
        };
        Ok((mean, covariance, 1))
    }

    fn score(&self, start: &Center, at: ScoreAt, x_t: &Tensor, step: &Step) -> Result<Estimated<'_>> {
        let (start, mut nfe) = self.center(start, x_t, step)?;
        let variance = step.sigma.powi(2);
        // A frozen score s makes (x_t - x0)/σ² + s the score of N(x_t + σ² s, σ²).
        let mut frozen = |x: &Tensor, sigma: f64| -> Result<Tensor> {
            nfe += 1;
            let denoised = self.model.denoise(x, &Sigma::Same(sigma))?;
            let c = variance / sigma.powi(2);
            combine(&[(&[1.0], x_t), (&[c], &denoised), (&[-c], x)])
        };
        let mean = match at {
            ScoreAt::State { sigma: score_sigma } => {
                let x_t = x_t.clone();
                let approx =
                    Approx::Score { start, x_t, sigma: step.sigma, score_sigma, model: &*self.model };
                return Ok(Estimated { approx, nfe });
            }
            ScoreAt::Level => frozen(x_t, step.sigma)?,
            ScoreAt::Start { sigma } => frozen(&start, sigma)?,
        };
        let covariance = Covariance::Scalar(vec![variance]);
        Ok(Estimated { approx: Approx::Gaussian { mean, covariance, start }, nfe })
    }

    fn conditional(&self, x_t: &Tensor, step: &Step) -> Result<Approx<'_>> {
        match self.model.as_conditional() {
            Some(model) => model.conditional(x_t, &Sigma::Same(step.sigma)),
            None => Err(Error::missing("the estimate", "p(x0 | x_t) in closed form", "this prior")),
        }
    }

    fn draws(&self, count: usize, x_t: &Tensor, step: &Step, noise: &Noise) -> Result<Approx<'_>> {
        let shape = self.model.shape();
        let at = Address::new(step.index, Purpose::Estimate, 0);
        let d: usize = shape.iter().product();
        let mut values = Vec::with_capacity(noise.len() * count * d);
        match self.conditional(x_t, step)? {
            Approx::Mixture { rows, .. } => {
                for (i, mixture) in rows.iter().enumerate() {
                    let mut rng = noise.stream(i, at);
                    (0..count).for_each(|_| values.extend(mixture.sample(&mut rng)));
                }
            }
            Approx::Gaussian { mean, covariance, .. } => {
                for (i, mean) in to_f64(&mean)?.chunks(d).enumerate() {
                    let (mut rng, covariance) = (noise.stream(i, at), covariance.row(i)?);
                    for _ in 0..count {
                        let z = covariance.sample(&mut rng, d);
                        values.extend(mean.iter().zip(z).map(|(m, z)| m + z));
                    }
                }
            }
            Approx::Draws { points, log_weights } => {
                let (shared, m) = (points.dims()[0] == 1, points.dims()[1]);
                let points = to_f64(&points)?;
                for (i, weights) in log_weights.iter().enumerate() {
                    let mut rng = noise.stream(i, at);
                    for _ in 0..count {
                        let k = choose(weights, open01(&mut rng)) + if shared { 0 } else { i * m };
                        values.extend_from_slice(&points[k * d..(k + 1) * d]);
                    }
                }
            }
            other @ (Approx::Score { .. } | Approx::Sites { .. }) => {
                return Err(Error::missing("weighted draws", "draws of p(x0 | x_t)", other.name()));
            }
        }
        let points = from_f64(values, &batched(noise.len(), &batched(count, shape)), self.model.dtype())?;
        Ok(Approx::Draws { points, log_weights: vec![vec![0.0; count]; noise.len()] })
    }
}

impl Prior for Continuous {
    fn init(&self, sigma: f64, noise: &Noise) -> Result<Tensor> {
        let z = noise.normal(Address::new(0, Purpose::Init, 0), self.model.shape(), self.model.dtype())?;
        combine(&[(&[sigma], &z)])
    }

    fn estimate(&self, x_t: &Tensor, step: &Step, noise: &Noise) -> Result<Estimated<'_>> {
        check_rows("x_t", x_t, self.model.shape())?;
        match &self.estimate {
            Estimate::Gaussian { center, spread } => {
                let (mean, covariance, nfe) = self.gaussian(center, spread, x_t, step)?;
                let start = mean.clone();
                Ok(Estimated { approx: Approx::Gaussian { mean, covariance, start }, nfe })
            }
            Estimate::Score { start, at } => self.score(start, *at, x_t, step),
            Estimate::Draws { count } => {
                Ok(Estimated { approx: self.draws(*count, x_t, step, noise)?, nfe: 1 })
            }
            Estimate::Exact => Ok(Estimated { approx: self.conditional(x_t, step)?, nfe: 1 }),
        }
    }

    fn renoise(&self, x0_y: &Tensor, step: &Step, noise: &Noise) -> Result<Tensor> {
        // The official code draws here at the last level too; with next = 0 the draw is multiplied by 0.
        let z =
            noise.normal(Address::new(step.index, Purpose::Renoise, 0), self.model.shape(), x0_y.dtype())?;
        combine(&[(&[1.0], x0_y), (&[step.next], &z)])
    }
}
