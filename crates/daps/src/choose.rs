//! Which of several chains to show, without looking at the truth.
//!
//! The measurement error decides. Where several pictures explain a measurement equally well (in phase retrieval an image and
//! the same turned by 180°), chains that tie within the noise are told apart by the prior: the picture that it denoises with the
//! smaller error is the more likely one. Means are then taken over the chains that ended at the chosen picture.

use std::ops::Range;

use candle_core::{DType, Tensor};
use daps_core::tensors::{combine, squared_distance};
use daps_core::{Address, Discrepancy, Noise, Purpose, Row, Sigma, Statistic};

use crate::Result;
use crate::run::Run;

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

/// Chooses among the chains of `rows` by how far each is from the measurement.
pub(crate) fn choose(
    run: &Run,
    samples: &Tensor,
    rows: Range<usize>,
    misfits: &[Discrepancy],
    diverged: &[bool],
) -> Result<Choice> {
    let of: Vec<f64> = misfits.iter().map(|m| m.value).collect();
    // A likelihood that says nothing of its misfit leaves the first chain.
    let silent = run.problem.likelihood.statistic() == Statistic::Own;
    let is_whole = |c: &usize| !diverged[*c] && (of[*c].is_finite() || (silent && of[*c].is_nan()));
    let whole: Vec<usize> = (0..rows.len()).filter(is_whole).collect();
    let Some(best) = least(&whole, &of) else {
        return Ok(Choice { chosen: 0, kept: vec![], denoising_error: None });
    };
    if !run.is_ambiguous() {
        return Ok(Choice { chosen: best, kept: whole, denoising_error: None });
    }
    let most = of[best] + TIE * misfits[best].deviation;
    let ties: Vec<usize> = whole.into_iter().filter(|&c| of[c] <= most).collect();
    let errors = denoising_errors(
        run,
        &samples.narrow(0, rows.start, rows.len())?,
        run.address(run.rows[rows.start]),
    )?;
    let chosen = least(&ties, &errors).unwrap_or(best);
    let kept = ties.into_iter().filter(|&c| errors[c] <= OTHER * errors[chosen]).collect();
    Ok(Choice { chosen, kept, denoising_error: Some(errors) })
}

fn least(among: &[usize], values: &[f64]) -> Option<usize> {
    among.iter().copied().min_by(|&a, &b| values[a].total_cmp(&values[b]))
}

/// RMS of x - D(x + σn, σ) per chain, all with the same noise.
fn denoising_errors(run: &Run, x: &Tensor, row: Row) -> Result<Vec<f64>> {
    let (prior, chains) = (run.denoiser("the choice among chains")?, x.dims()[0]);
    let d = (x.elem_count() / chains.max(1)) as f64;
    let noise = Noise::new(run.seed, vec![Row { chain: 0, ..row }; chains]);
    let mut total = vec![0.0; chains];
    for j in 0..JUDGED_BY {
        let at = Address::new(0, Purpose::Reference, j);
        let z = noise.normal(at, prior.shape(), x.dtype())?;
        let noisy = combine(&[(&[1.0], x), (&[JUDGED_AT], &z)])?;
        for first in (0..chains).step_by(run.batch) {
            let n = run.batch.min(chains - first);
            let denoised = prior.denoise(&noisy.narrow(0, first, n)?, &Sigma::Same(JUDGED_AT))?;
            let part = x.narrow(0, first, n)?.to_dtype(DType::F64)?;
            let squares = squared_distance(&part, &denoised.to_dtype(DType::F64)?)?;
            total[first..first + n].iter_mut().zip(squares).for_each(|(t, s)| *t += s);
        }
    }
    Ok(total.iter().map(|t| (t / (d * JUDGED_BY as f64)).sqrt()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunConfig;
    use candle_core::Device;

    /// A picture, the same turned by 180° (which has the same Fourier magnitudes), and another one: the first is chosen and
    /// kept alone, though the second fits the measurement as well.
    #[test]
    fn the_prior_tells_a_picture_from_its_half_turn() {
        let dir = tempfile::tempdir().unwrap();
        let picture =
            |k: usize| (0..64).map(|i| ((i * (k + 3)) % 17) as f64 / 8.5 - 1.0).collect::<Vec<f64>>();
        let points: Vec<f64> = (0..5).flat_map(picture).collect();
        let points = Tensor::from_vec(points, (5, 1, 8, 8), &Device::Cpu).unwrap();
        points.write_npy(dir.path().join("points.npy")).unwrap();
        points.get(0).unwrap().write_npy(dir.path().join("truth.npy")).unwrap();
        let config = "samples = 3\n[task]\noperator = 'phase_retrieval'\nshape = [1, 8, 8]\ntruth = 'truth.npy'\n\
                      [prior]\nkind = 'empirical'\nfile = 'points.npy'\n[method]\npreset = 'fast'\n";
        let run = Run::new(RunConfig::parse(config).unwrap(), dir.path()).unwrap();
        let turned: Vec<f64> = picture(0).into_iter().rev().collect();
        let samples = [turned, picture(0), picture(3)].concat();
        let samples = Tensor::from_vec(samples, (3, 1, 8, 8), &Device::Cpu).unwrap();
        let fit = run.task(&[0, 1, 2]).unwrap().likelihood.discrepancy(&samples).unwrap();
        assert!((fit[0].value - fit[1].value).abs() < 1e-9 && fit[2].value > 2.0 * fit[0].value, "{fit:?}");
        let choice = choose(&run, &samples, 0..3, &fit, &[false; 3]).unwrap();
        assert_eq!((choice.chosen, choice.kept.as_slice()), (1, &[1][..]));
        // A chain that diverged is never chosen.
        let choice = choose(&run, &samples, 0..3, &fit, &[false, true, false]).unwrap();
        assert_eq!((choice.chosen, choice.kept.as_slice()), (0, &[0][..]));
    }
}
