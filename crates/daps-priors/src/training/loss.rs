//! EDM's loss (Karras et al., equation 8) and its gradient.
//!
//! E[λ(σ) ‖D(x0 + σn, σ) - x0‖²] with λ = 1/c_out² is the plain mean square of F - (x0 - c_skip x)/c_out, so loss and
//! gradient are taken there, at the raw network, in one pass each.

use candle_core::backprop::GradStore;
use daps_core::Sigma;
use daps_core::tensors::{combine, squared_distance};

use super::batch::Batch;
use crate::Result;
use crate::network::{NetworkPrior, factors};

/// The mean over the batch of λ(σ) ‖D - x0‖²/d, and its gradient in every variable of the network.
pub fn loss_and_gradients(prior: &NetworkPrior, batch: &Batch) -> Result<(f64, GradStore)> {
    let c = prior.coefficients(&batch.x0, &Sigma::Rows(batch.sigma.clone()))?;
    let each = |f: &dyn Fn(usize) -> f64| (0..c.len()).map(f).collect::<Vec<f64>>();
    let x0 = &batch.x0;
    // F(c_in (x0 + σ n)), with the sum and the factor in one pass.
    let input =
        combine(&[(&factors(&c, |c| c.input), x0), (&each(&|i| c[i].input * batch.sigma[i]), &batch.noise)])?;
    let raw = prior.raw(&input, &c)?;
    let output = prior.image(&raw.detach())?;
    let target = combine(&[
        (&each(&|i| (1.0 - c[i].skip) / c[i].out), x0),
        (&each(&|i| -c[i].skip * batch.sigma[i] / c[i].out), &batch.noise),
    ])?;
    let count = output.elem_count() as f64;
    let loss = squared_distance(&output, &target)?.iter().sum::<f64>() / count;
    let gradient = combine(&[(&[2.0 / count], &output), (&[-2.0 / count], &target)])?;
    Ok((loss, prior.pull_back(&raw, &gradient)?))
}
