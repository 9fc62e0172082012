//! Quality along the levels: how good the estimate x̂0 and the draw x0|y of every level are.

use candle_core::Tensor;
use daps::quality::of_samples;
use daps::{Result, Run};
use daps_core::tensors::to_f64;
use daps_core::{Event, Likelihood, Step};

use super::Experiment;
use super::cell::{Cell, Level, mean};

/// LPIPS costs more than a level itself: about so many of them have it.
const LPIPS_LEVELS: usize = 20;

/// Whether a level is one of those: every so many, and the last.
fn has_lpips_at(step: &Step) -> bool {
    step.index.is_multiple_of(step.of.div_ceil(LPIPS_LEVELS)) || step.index + 1 == step.of
}

/// What one chain is at a level.
#[derive(Clone, Copy, Default)]
struct Judged {
    psnr: Option<f64>,
    lpips: Option<f64>,
    chi2: Option<f64>,
}

impl Experiment {
    /// Whether cells have their levels: the file asks for them, and samples are images.
    pub(super) fn follows(&self) -> bool {
        self.config.levels && self.model.model.shape().len() == 3
    }

    /// Whether a cell has them, with LPIPS where its weights are there.
    pub(super) fn has_levels(&self, cell: &Cell) -> bool {
        let judged = |l: &Level| !self.has_lpips() || l.lpips_draw.is_some();
        cell.levels.iter().any(judged)
    }

    /// Adds a level to every image's list; LPIPS is asked for at some levels only.
    pub(super) fn follow(
        &self,
        run: &Run,
        likelihood: &dyn Likelihood,
        event: &Event,
        levels: &mut [Vec<Level>],
    ) -> Result<()> {
        let Event::Level { step, x0_hat, x0_y, state, .. } = event else { return Ok(()) };
        let judge = |x: &Tensor| self.judge(run, likelihood, x, &state.diverged, has_lpips_at(step));
        let (estimate, draw) = (judge(x0_hat)?, judge(x0_y)?);
        let k = run.samples;
        for (list, (estimate, draw)) in levels.iter_mut().zip(estimate.chunks(k).zip(draw.chunks(k))) {
            let over = |chains: &[Judged], of: fn(&Judged) -> Option<f64>| mean(chains.iter().map(of));
            list.push(Level {
                sigma: step.sigma,
                psnr_estimate: over(estimate, |j| j.psnr),
                psnr_draw: over(draw, |j| j.psnr),
                lpips_estimate: over(estimate, |j| j.lpips),
                lpips_draw: over(draw, |j| j.lpips),
                chi2_estimate: over(estimate, |j| j.chi2),
                chi2_draw: over(draw, |j| j.chi2),
            });
        }
        Ok(())
    }

    /// Every chain of a level; one that diverged has nothing to judge.
    fn judge(
        &self,
        run: &Run,
        likelihood: &dyn Likelihood,
        x: &Tensor,
        diverged: &[bool],
        has_lpips: bool,
    ) -> Result<Vec<Judged>> {
        let (&[_, _, _], Some(truth)) = (run.space.shape(), &run.truth) else { return Ok(vec![]) };
        let (truth, d, k) = (to_f64(truth)?, run.space.size(), run.samples);
        let (misfits, values) = (likelihood.discrepancy(x)?, to_f64(&run.values(x)?)?);
        let mut judged = Vec::with_capacity(misfits.len());
        for (i, truth) in truth.chunks(d).enumerate() {
            let rows = i * k..(i + 1) * k;
            let lpips = if has_lpips { self.lpips(run, x, i, rows.clone())? } else { vec![] };
            let mut lpips = lpips.into_iter();
            for r in rows {
                let one = Judged {
                    psnr: of_samples(&run.space, &values[r * d..(r + 1) * d], truth).0,
                    lpips: lpips.next().flatten(),
                    chi2: Some(misfits[r].value).filter(|v| v.is_finite()),
                };
                judged.push(if diverged[r] { Judged::default() } else { one });
            }
        }
        Ok(judged)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{GAUSSIAN, small};
    use super::*;

    #[test]
    fn some_levels_have_lpips_the_first_and_the_last_among_them() {
        let at = |of: usize| -> Vec<usize> {
            let step = |index| Step { index, of, start: 1.0, sigma: 1.0, next: 0.0 };
            (0..of).filter(|i| has_lpips_at(&step(*i))).collect()
        };
        assert_eq!(at(12), (0..12).collect::<Vec<_>>());
        assert_eq!(at(45), [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 44]);
        assert_eq!((at(200).len(), at(200).last()), (21, Some(&199)));
    }

    /// At the first level the estimate knows nothing of the measurement, and the draw follows it.
    #[test]
    fn a_draw_is_nearer_to_the_measurement_than_its_estimate() {
        let dir = tempfile::tempdir().unwrap();
        let top = format!("{GAUSSIAN}\nlevels = true\nsamples = 2\ntasks = ['inpaint_random']");
        let method = "[[method]]\nschedule = { rule = 'levels', sigmas = [10.0, 0.1, 0.0] }\nkernel = 'exact'\n\
                      estimate = { kind = 'gaussian', center = 'tweedie', spread = 'sigma' }\n";
        let out = dir.path().join("out");
        small(dir.path(), &top, method).execute(&out, &[], &mut ()).unwrap();
        let text = std::fs::read_to_string(out.join("levels.csv")).unwrap();
        let head: Vec<&str> = text.lines().next().unwrap().split(',').collect();
        let first: Vec<&str> = text.lines().filter(|l| l.contains(",10,")).collect();
        assert_eq!((text.lines().count(), first.len()), (7, 3), "{text}");
        for line in first {
            let of = |name| {
                let at = head.iter().position(|h| *h == name).unwrap();
                line.split(',').nth(at).unwrap().parse::<f64>().unwrap()
            };
            assert!(of("chi2_estimate") > 5.0 && of("chi2_draw") < 2.0, "{line}");
            // What nothing measures is as uncertain as the spread says, which is why the draw is no better a picture.
            assert!(of("psnr_estimate") > of("psnr_draw") + 3.0, "{line}");
        }
    }
}
