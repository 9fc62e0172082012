//! Metropolis-adjusted Langevin for smooth targets, phase retrieval first of all.
//!
//! η = c d^(-1/3)/L, where L bounds the target's Gauss–Newton curvature. Where the target falls into independent factors
//! (phase retrieval: channels), each is accepted on its own with a c of its own. c is adapted to 57 % acceptance in a
//! warm-up and then frozen, so that the draws after it come from a proper Markov chain.

use daps_core::candle::Tensor;
use daps_core::tensors::{combine, dot_rows, pick};
use daps_core::{
    Address, Approx, ChainInfo, Conditional, Cost, Covariance, Kernel, Need, Noise, Purpose, Result, Step,
};
use serde::{Deserialize, Serialize};

use super::metropolis::keep_accepted;
use super::step_size::{adapt, curvature};
use super::{Registered, diverged_rows, smooth};
use crate::checks::{check_positive, check_some};

/// Warm-up and N adjusted Langevin steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mala {
    /// N, steps after the warm-up.
    pub steps: usize,
    /// Steps in which c is adapted.
    pub warmup: usize,
    /// c before the warm-up.
    pub c: f64,
}

impl Default for Mala {
    fn default() -> Self {
        Self { steps: 50, warmup: 30, c: 1.0 }
    }
}

/// The acceptance at which MALA moves fastest in high dimension (Roberts and Rosenthal).
const BEST_ACCEPTANCE: f64 = 0.574;

/// The target cut into factors: every tensor is `[rows · factors, rest]`.
struct Factors<'a> {
    target: &'a Conditional<'a>,
    mean: Option<(Tensor, Covariance)>,
    factors: usize,
    shape: Vec<usize>,
}

/// A point of the chain: values and gradients of the target per factor.
struct Point {
    x: Tensor,
    value: Vec<f64>,
    gradient: Tensor,
}

impl<'a> Factors<'a> {
    fn new(target: &'a Conditional, start: &Tensor) -> Result<Self> {
        let shape = start.dims().to_vec();
        // Only a spread that is itself separate over the slices keeps the factors apart.
        let factors = match target.approx {
            Approx::Gaussian { covariance: Covariance::Scalar(_) | Covariance::Diagonal(_), .. } => {
                target.likelihood.factors()
            }
            _ => 1,
        };
        let mut this = Self { target, mean: None, factors, shape };
        if let (true, Approx::Gaussian { mean, covariance, .. }) = (factors > 1, target.approx) {
            let covariance = match covariance {
                Covariance::Scalar(c) if c.len() > 1 => {
                    Covariance::Scalar(c.iter().flat_map(|c| vec![*c; factors]).collect())
                }
                Covariance::Diagonal(c) => Covariance::Diagonal(this.cut(c)?),
                other => other.clone(),
            };
            this.mean = Some((this.cut(mean)?, covariance));
        }
        Ok(this)
    }

    fn cut(&self, t: &Tensor) -> Result<Tensor> {
        let rows = t.dims()[0] * self.factors;
        Ok(t.reshape((rows, t.elem_count() / rows))?)
    }

    fn at(&self, x: Tensor) -> Result<Point> {
        let whole = x.reshape(self.shape.as_slice())?;
        let (data, data_gradient) = smooth("mala", self.target.likelihood)?.value_and_gradient(&whole)?;
        // One factor: the likelihood may still report several values for a row.
        let data: Vec<f64> = data.chunks(data.len() / x.dims()[0]).map(|c| c.iter().sum()).collect();
        let (prior, prior_gradient) = match &self.mean {
            Some((mean, covariance)) => {
                let approx = Approx::Gaussian {
                    mean: mean.clone(),
                    covariance: covariance.clone(),
                    start: mean.clone(),
                };
                (approx.log_prob(&x)?, approx.gradient(&x)?.0)
            }
            None => {
                (self.target.approx.log_prob(&whole)?, self.cut(&self.target.approx.gradient(&whole)?.0)?)
            }
        };
        let value = prior.iter().zip(&data).map(|(a, b)| a + b).collect();
        let gradient = combine(&[(&[1.0], &prior_gradient), (&[1.0], &self.cut(&data_gradient)?)])?;
        Ok(Point { x, value, gradient })
    }
}

/// ln of the density with which MALA proposes `to` from `from`, up to a constant.
fn ln_proposal(from: &Point, to: &Point, eta: &[f64]) -> Result<Vec<f64>> {
    let back: Vec<f64> = eta.iter().map(|e| -e).collect();
    let r = combine(&[(&[1.0], &to.x), (&[-1.0], &from.x), (&back, &from.gradient)])?;
    Ok(dot_rows(&r, &r)?.iter().zip(eta).map(|(s, e)| -s / (4.0 * e)).collect())
}

impl Registered for Mala {
    const NEEDS: &'static [Need] = &[Need::SmoothLikelihood];

    fn check(&self) -> Result<()> {
        check_some("mala.steps", self.steps)?;
        check_positive("mala.c", self.c)?;
        Ok(())
    }
}

impl Kernel for Mala {
    fn name(&self) -> &'static str {
        "mala"
    }

    fn draw(&self, target: &Conditional, noise: &Noise, step: &Step) -> Result<(Tensor, ChainInfo)> {
        let start = target.approx.start()?;
        let factors = Factors::new(target, &start)?;
        let shape = start.dims()[1..].to_vec();
        let chains = start.dims()[0] * factors.factors;
        let d = start.elem_count() / chains.max(1);
        let bound = curvature(target.approx, target.likelihood)?;
        let unit: Vec<f64> =
            (0..chains).map(|i| (d as f64).powf(-1.0 / 3.0) / pick(&bound, i / factors.factors)).collect();
        let mut c = vec![self.c; chains];
        let mut point = factors.at(factors.cut(&start)?)?;
        let mut accepted = vec![0usize; chains];
        for j in 0..self.warmup + self.steps {
            let eta: Vec<f64> = c.iter().zip(&unit).map(|(c, u)| c * u).collect();
            let spread: Vec<f64> = eta.iter().map(|e| (2.0 * e).sqrt()).collect();
            let z = noise.normal(Address::new(step.index, Purpose::Kernel, j), &shape, start.dtype())?;
            let moved =
                combine(&[(&[1.0], &point.x), (&eta, &point.gradient), (&spread, &factors.cut(&z)?)])?;
            let proposal = factors.at(moved)?;
            let (there, back) =
                (ln_proposal(&point, &proposal, &eta)?, ln_proposal(&proposal, &point, &eta)?);
            let at = Address::new(step.index, Purpose::Accept, j);
            let mut streams: Vec<_> = (0..noise.len()).map(|row| noise.stream(row, at)).collect();
            let mut accept = vec![false; chains];
            for i in 0..chains {
                let ratio = proposal.value[i] - point.value[i] + back[i] - there[i];
                accept[i] = daps_core::open01(&mut streams[i / factors.factors]).ln() < ratio;
                if j < self.warmup {
                    c[i] *= adapt(ratio, j, BEST_ACCEPTANCE);
                } else {
                    accepted[i] += usize::from(accept[i]);
                }
            }
            let value =
                (0..chains).map(|i| if accept[i] { proposal.value[i] } else { point.value[i] }).collect();
            point = Point {
                x: keep_accepted(&point.x, &proposal.x, &accept)?,
                gradient: keep_accepted(&point.gradient, &proposal.gradient, &accept)?,
                value,
            };
        }
        let share = |row: &[usize]| row.iter().sum::<usize>() as f64 / (row.len() * self.steps) as f64;
        let x = point.x.reshape(factors.shape.as_slice())?;
        let info = ChainInfo {
            acceptance: Some(accepted.chunks(factors.factors).map(share).collect()),
            diverged: diverged_rows(&x)?,
            cost: Cost { nfe: 0, operator_calls: 2 * (1 + self.warmup + self.steps) },
            iterations: None,
        };
        Ok((x, info))
    }
}
