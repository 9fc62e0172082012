//! What one cell of the table found: one method on one task, image and seed.

use daps::Measurement;
use serde::{Deserialize, Serialize};

/// PSNR in dB above which a picture counts as found.
pub const SUCCESS: f64 = 20.0;

/// A finished cell. Numbers that do not exist (a failure, no colour for LPIPS) are null.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// SHA-256 of everything that the result depends on.
    pub key: String,
    /// The method's label.
    pub method: String,
    /// The task's label.
    pub task: String,
    /// The image's name.
    pub image: String,
    /// The seed.
    pub seed: u64,
    /// Why there is no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Chains.
    pub samples: usize,
    /// Chains that diverged.
    pub diverged: usize,
    /// Denoiser calls per chain.
    pub nfe: Option<usize>,
    /// Operator calls per chain.
    pub operator_calls: Option<usize>,
    /// The chain that was chosen without the truth.
    pub chosen: Option<usize>,
    /// PSNR in dB, mean over chains; where a measurement has several explanations, of the chosen chain.
    pub psnr: Option<f64>,
    /// The same of SSIM.
    pub ssim: Option<f64>,
    /// The same of LPIPS (VGG16 with mean pooling, as the paper's code has it).
    pub lpips: Option<f64>,
    /// PSNR of the chains' mean.
    pub psnr_mean: Option<f64>,
    /// SSIM of the chains' mean.
    pub ssim_mean: Option<f64>,
    /// PSNR of the chain that is closest to the truth, as if it were known which.
    pub psnr_best: Option<f64>,
    /// RMS of A(x) - y over what was measured, mean over the chains of `psnr`.
    pub error: Option<f64>,
    /// χ² of the residual per number at the true noise; 1 for posterior samples.
    pub chi2: Option<f64>,
    /// E‖s - s'‖²/E‖s - truth‖²: 1 for posterior samples.
    pub diversity: Option<f64>,
    /// Its numerator; cells of older versions have none.
    #[serde(default)]
    pub apart: Option<f64>,
    /// Its denominator; cells of older versions have none.
    #[serde(default)]
    pub away: Option<f64>,
    /// The share of the true values that lie between the smallest and the largest sample, where there are several; cells of older
    /// versions have none.
    #[serde(default)]
    pub coverage: Option<f64>,
    /// What that share is for exact posterior samples.
    #[serde(default)]
    pub coverage_nominal: Option<f64>,
    /// RMS over values of the samples' standard deviation, where there are several; cells of older versions have none.
    #[serde(default)]
    pub spread: Option<f64>,
    /// Whether the chosen chain has more than 20 dB. A cell without a result counts as no success, see [`COLUMNS`].
    pub success: Option<f64>,
    /// The share of chains that have.
    pub success_chains: Option<f64>,
    /// The same when a chain may be turned by 180 degrees first.
    pub success_turned: Option<f64>,
    /// The share of chains that the classifier takes for the image's label.
    #[serde(default)]
    pub accuracy: Option<f64>,
    /// The share of chains that it takes for what it takes the true image for.
    #[serde(default)]
    pub agreement: Option<f64>,
    /// Every chain.
    pub chains: Chains,
    /// Means over chains along the levels, where they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Level>,
    /// Wall-clock seconds of a chain, which differ from run to run; the table of results leaves them out.
    pub seconds: f64,
}

/// One number per chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chains {
    /// PSNR in dB.
    pub psnr: Vec<Option<f64>>,
    /// PSNR of the chain or of its half turn, whichever is larger.
    pub psnr_turned: Vec<Option<f64>>,
    /// SSIM.
    pub ssim: Vec<Option<f64>>,
    /// LPIPS.
    pub lpips: Vec<Option<f64>>,
    /// RMS of A(x) - y.
    pub error: Vec<Option<f64>>,
}

/// One level.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// Its noise level.
    pub sigma: f64,
    /// PSNR of the estimate x̂0.
    pub psnr_estimate: Option<f64>,
    /// PSNR of the draw x0|y.
    pub psnr_draw: Option<f64>,
    /// LPIPS of the estimate, where its weights are there; levels of older versions have none.
    #[serde(default)]
    pub lpips_estimate: Option<f64>,
    /// LPIPS of the draw.
    #[serde(default)]
    pub lpips_draw: Option<f64>,
    /// χ² per number of the estimate.
    pub chi2_estimate: Option<f64>,
    /// χ² per number of the draw.
    pub chi2_draw: Option<f64>,
}

/// A quantity of a level.
pub type LevelColumn = (&'static str, fn(&Level) -> Option<f64>);

/// What can be drawn along the levels.
pub const LEVEL_COLUMNS: [LevelColumn; 6] = [
    ("psnr_estimate", |l| l.psnr_estimate),
    ("psnr_draw", |l| l.psnr_draw),
    ("lpips_estimate", |l| l.lpips_estimate),
    ("lpips_draw", |l| l.lpips_draw),
    ("chi2_estimate", |l| l.chi2_estimate),
    ("chi2_draw", |l| l.chi2_draw),
];

/// A number of a cell, where it has one.
pub type Number = fn(&Cell) -> Option<f64>;

/// A number of a cell that can be averaged, tabulated and drawn.
pub struct Column {
    /// Its name in files.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// Digits for people.
    pub digits: usize,
    /// The number.
    pub of: Number,
    /// Numerator and denominator of a number that is a ratio of expectations: over images, means of both are divided.
    pub parts: Option<[Number; 2]>,
}

const fn column(name: &'static str, title: &'static str, digits: usize, of: Number) -> Column {
    Column { name, title, digits, of, parts: None }
}

/// A share of successes: a cell that has no result has none, however well the others do.
fn success(cell: &Cell, share: Option<f64>) -> Option<f64> {
    share.or(cell.failure.as_ref().map(|_| 0.0))
}

const APART: Number = |c| c.apart;
const AWAY: Number = |c| c.away;

/// The numbers of a cell in the order of the files, without what a batch shares: its seconds, and operator calls, which last until
/// the slowest of its rows has converged.
pub const COLUMNS: &[Column] = &[
    column("psnr", "PSNR (dB)", 2, |c| c.psnr),
    column("ssim", "SSIM", 3, |c| c.ssim),
    column("lpips", "LPIPS", 3, |c| c.lpips),
    column("psnr_mean", "PSNR of the mean", 2, |c| c.psnr_mean),
    column("ssim_mean", "SSIM of the mean", 3, |c| c.ssim_mean),
    column("psnr_best", "PSNR of the best chain", 2, |c| c.psnr_best),
    column("error", "measurement error", 4, |c| c.error),
    column("chi2", "χ²", 3, |c| c.chi2),
    Column { parts: Some([APART, AWAY]), ..column("diversity", "diversity", 2, |c| c.diversity) },
    column("apart", "E‖s-s'‖²", 2, APART),
    column("away", "E‖s-truth‖²", 2, AWAY),
    column("coverage", "coverage", 2, |c| c.coverage),
    column("coverage_nominal", "coverage of exact samples", 2, |c| c.coverage_nominal),
    column("spread", "standard deviation", 3, |c| c.spread),
    column("success", "success", 2, |c| success(c, c.success)),
    column("success_chains", "success per chain", 2, |c| success(c, c.success_chains)),
    column("success_turned", "success per chain, turned", 2, |c| success(c, c.success_turned)),
    column("accuracy", "accuracy", 3, |c| c.accuracy),
    column("agreement", "agreement", 3, |c| c.agreement),
    column("nfe", "denoiser calls", 0, |c| c.nfe.map(|n| n as f64)),
];

/// The column of a name.
pub fn named(name: &str) -> Option<&'static Column> {
    COLUMNS.iter().find(|c| c.name == name)
}

/// The mean of what is there.
pub(super) fn mean(values: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let (sum, n) = values.flatten().fold((0.0, 0usize), |(s, n), v| (s + v, n + 1));
    (n > 0).then(|| sum / n as f64)
}

/// A number that is one.
fn finite(v: f64) -> Option<f64> {
    v.is_finite().then_some(v)
}

impl Cell {
    /// A cell that has no result.
    pub(super) fn failed(mut self, why: &str) -> Self {
        self.failure = Some(why.to_owned());
        self
    }

    /// Its seconds, if it came to the end.
    pub(super) fn finished_seconds(&self) -> Option<f64> {
        self.failure.is_none().then_some(self.seconds)
    }

    /// The same where the mean of all chains is the answer: it is judged, at the calls of all of them.
    pub(super) fn answered_by_mean(mut self, lpips: Option<f64>) -> Self {
        (self.psnr, self.ssim, self.lpips) = (self.psnr_mean, self.ssim_mean, lpips);
        self.success = self.psnr.map(|psnr| f64::from(u8::from(psnr > SUCCESS)));
        self.nfe = self.nfe.map(|nfe| nfe * self.samples);
        self
    }

    /// With what a run found. `ambiguous`: the chosen chain stands for all.
    pub(super) fn found(
        mut self,
        found: &Measurement,
        turned: Vec<Option<f64>>,
        lpips: Vec<Option<f64>>,
        ambiguous: bool,
    ) -> Self {
        let list = |values: &Option<Vec<f64>>| -> Vec<Option<f64>> {
            values.iter().flatten().map(|v| finite(*v)).collect()
        };
        let error: Vec<Option<f64>> = found.error.iter().map(|v| finite(*v)).collect();
        self.diverged = error.iter().filter(|e| e.is_none()).count();
        if self.diverged == self.samples {
            return self.failed("all chains diverged");
        }
        let whole = |values: Vec<Option<f64>>| -> Vec<Option<f64>> {
            values.into_iter().zip(&error).map(|(v, e)| v.filter(|_| e.is_some())).collect()
        };
        let (turned, lpips) = (whole(turned), whole(lpips));
        let chains =
            Chains { psnr: list(&found.psnr), psnr_turned: turned, ssim: list(&found.ssim), lpips, error };
        let head = |values: &[Option<f64>]| match ambiguous {
            true => values.get(found.chosen).copied().flatten(),
            false => mean(values.iter().copied()),
        };
        let share = |values: &[Option<f64>]| {
            let found = values.iter().filter(|v| v.is_some_and(|v| v > SUCCESS)).count();
            (!values.is_empty()).then(|| found as f64 / values.len() as f64)
        };
        let best = chains.psnr.iter().copied().flatten().fold(f64::NEG_INFINITY, f64::max);
        self.chosen = Some(found.chosen);
        (self.psnr, self.ssim, self.lpips) = (head(&chains.psnr), head(&chains.ssim), head(&chains.lpips));
        (self.psnr_mean, self.ssim_mean) = (found.mean_psnr, found.mean_ssim);
        self.psnr_best = finite(best);
        self.error = head(&chains.error);
        self.chi2 = finite(found.chi2);
        self.diversity = found.diversity.and_then(finite);
        (self.apart, self.away) = (found.apart.and_then(finite), found.away.and_then(finite));
        (self.coverage, self.coverage_nominal, self.spread) =
            (found.coverage, found.coverage_nominal, found.spread);
        self.success =
            chains.psnr.get(found.chosen).map(|p| f64::from(u8::from(p.is_some_and(|v| v > SUCCESS))));
        self.success_chains = share(&chains.psnr);
        self.success_turned = share(&chains.psnr_turned);
        self.chains = chains;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_without_a_result_is_no_success_and_has_no_psnr() {
        let failed = Cell::default().failed("all chains diverged");
        let of = |cell: &Cell, name: &str| named(name).and_then(|column| (column.of)(cell));
        for name in ["success", "success_chains", "success_turned"] {
            assert_eq!(of(&failed, name), Some(0.0), "{name}");
            // One whose success is not known, such as that of samples that are no pictures, is left out.
            assert_eq!(of(&Cell::default(), name), None, "{name}");
        }
        assert_eq!(of(&failed, "psnr"), None);
    }

    /// Chains of 10 and 30 dB, of which the first was chosen, and a third that diverged.
    #[test]
    fn a_cell_speaks_of_all_chains_or_of_the_chosen_one() {
        let text = r#"{ "name": "a", "chosen": 0, "kept": [0, 1], "error": [0.05, 0.07, null], "chi2": 1.0, "chi2_z": 0.0,
            "denoising_error": null, "psnr": [10.0, 30.0, null], "ssim": [0.2, 0.4, null], "mean_psnr": 31.0,
            "mean_ssim": 0.5, "diversity": 0.5, "apart": 1.0, "away": 2.0, "r_hat": null, "effective": null }"#;
        let measurement: Measurement = serde_json::from_str(text).unwrap();
        let found = |ambiguous| {
            let cell = Cell { samples: 3, ..Cell::default() };
            let turned = vec![Some(25.0), Some(30.0), Some(40.0)];
            cell.found(&measurement, turned, vec![Some(0.3), Some(0.1), Some(0.0)], ambiguous)
        };
        let all = found(false);
        assert_eq!((all.psnr, all.diverged, all.failure), (Some(20.0), 1, None));
        assert!((all.ssim.unwrap() - 0.3).abs() < 1e-12 && (all.lpips.unwrap() - 0.2).abs() < 1e-12);
        assert!((all.error.unwrap() - 0.06).abs() < 1e-12);
        assert_eq!((all.psnr_mean, all.psnr_best), (Some(31.0), Some(30.0)));
        let third = 1.0 / 3.0;
        assert_eq!((all.success, all.success_chains), (Some(0.0), Some(third)));
        assert_eq!(all.success_turned, Some(2.0 * third));
        let answered = Cell { nfe: Some(30), ..found(false) }.answered_by_mean(Some(0.4));
        assert_eq!((answered.psnr, answered.ssim, answered.lpips), (Some(31.0), Some(0.5), Some(0.4)));
        assert_eq!((answered.nfe, answered.success), (Some(90), Some(1.0)));
        let chosen = found(true);
        assert_eq!((chosen.psnr, chosen.ssim, chosen.lpips), (Some(10.0), Some(0.2), Some(0.3)));
        assert_eq!((chosen.error, chosen.psnr_best), (Some(0.05), Some(30.0)));
    }

    #[test]
    fn cells_of_older_versions_are_read() {
        let mut old = serde_json::to_value(Cell { diversity: Some(0.5), ..Cell::default() }).unwrap();
        let map = old.as_object_mut().unwrap();
        let newer = ["apart", "away", "accuracy", "agreement", "coverage", "coverage_nominal", "spread"];
        newer.iter().for_each(|key| _ = map.remove(*key));
        let cell: Cell = serde_json::from_value(old).unwrap();
        assert_eq!((cell.diversity, cell.apart, cell.away), (Some(0.5), None, None));
    }
}
