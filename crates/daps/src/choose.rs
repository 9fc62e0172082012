//! Which of several chains to show, without looking at the truth.
//!
//! The measurement error decides. Where several pictures explain a measurement equally well (in phase retrieval an image and
//! the same turned by 180°), chains that tie within the noise are told apart by the prior: the picture that it denoises with the
//! smaller error is the more likely one. Means are then taken over the chains that ended at the chosen picture.

use std::ops::Range;

use candle_core::{DType, Tensor};
use daps_core::real::{combine, squared_distance};
use daps_core::{Address, Noise, Purpose, Row, Sigma};

use crate::run::Run;
use crate::{Result, task};

/// Chains whose χ² lies this many of its standard deviations above the smallest one tie with it.
const TIE: f64 = 3.0;
/// The noise level at which the prior judges.
const JUDGED_AT: f64 = 0.5;
/// Draws of noise that the judgement averages over.
const JUDGED_BY: usize = 4;
/// A chain whose denoising error is beyond this many times the smallest one shows another picture.
const OTHER: f64 = 1.2;

/// The outcome for one measurement.
pub(crate) struct Choice {
    /// The chain to show.
    pub chosen: usize,
    /// The chains to take means over.
    pub kept: Vec<usize>,
    /// The prior's judgement of every chain, where it was asked.
    pub denoising_error: Option<Vec<f64>>,
}

/// Chooses among the chains of `rows`; `chi2` is per measured number.
pub(crate) fn choose(
    run: &Run,
    samples: &Tensor,
    rows: Range<usize>,
    chi2: &[f64],
    diverged: &[bool],
) -> Result<Choice> {
    let whole: Vec<usize> = (0..rows.len()).filter(|&c| !diverged[c] && chi2[c].is_finite()).collect();
    let Some(best) = least(&whole, chi2) else {
        return Ok(Choice { chosen: 0, kept: vec![], denoising_error: None });
    };
    if !task::is_ambiguous(run.operator.name()) {
        return Ok(Choice { chosen: best, kept: whole, denoising_error: None });
    }
    let m = run.operator.output_shape().iter().product::<usize>() as f64;
    let ties: Vec<usize> =
        whole.into_iter().filter(|&c| chi2[c] <= chi2[best] + TIE * (2.0 / m).sqrt()).collect();
    let errors = denoising_errors(run, &samples.narrow(0, rows.start, rows.len())?, run.rows[rows.start])?;
    let chosen = least(&ties, &errors).unwrap_or(best);
    let kept = ties.into_iter().filter(|&c| errors[c] <= OTHER * errors[chosen]).collect();
    Ok(Choice { chosen, kept, denoising_error: Some(errors) })
}

fn least(among: &[usize], values: &[f64]) -> Option<usize> {
    among.iter().copied().min_by(|&a, &b| values[a].total_cmp(&values[b]))
}

/// RMS of x - D(x + σn, σ) per chain, all with the same noise.
fn denoising_errors(run: &Run, x: &Tensor, row: Row) -> Result<Vec<f64>> {
    let chains = x.dims()[0];
    let d = (x.elem_count() / chains.max(1)) as f64;
    let noise = Noise::new(run.config.seed, vec![Row { chain: 0, ..row }; chains]);
    let mut total = vec![0.0; chains];
    for j in 0..JUDGED_BY {
        let at = Address::new(0, Purpose::Reference, j);
        let z = noise.normal(at, run.prior.shape(), x.dtype())?;
        let noisy = combine(&[(&[1.0], x), (&[JUDGED_AT], &z)])?;
        for first in (0..chains).step_by(run.config.batch) {
            let n = run.config.batch.min(chains - first);
            let denoised = run.prior.denoise(&noisy.narrow(0, first, n)?, &Sigma::Same(JUDGED_AT))?;
            let part = x.narrow(0, first, n)?.to_dtype(DType::F64)?;
            let squares = squared_distance(&part, &denoised.to_dtype(DType::F64)?)?;
            total[first..first + n].iter_mut().zip(squares).for_each(|(t, s)| *t += s);
        }
    }
    Ok(total.iter().map(|t| (t / (d * JUDGED_BY as f64)).sqrt()).collect())
}
