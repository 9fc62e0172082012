//! What to know before the numbers of a table are believed.

use std::collections::BTreeMap;

use daps::quality::FEWEST_FOR_FID;
use daps::{Answer, assets};

use super::cell::Cell;
use super::{Experiment, Progressed};

/// Incompleteness, unfit pairs, failures, and how to read the numbers.
pub(super) fn notes(experiment: &Experiment, cells: &[Cell], progressed: &Progressed) -> Vec<String> {
    let mut lines = missing(experiment, cells, progressed);
    lines.extend(how_to_read(experiment, cells));
    lines
}

/// What is not in the table.
fn missing(experiment: &Experiment, cells: &[Cell], progressed: &Progressed) -> Vec<String> {
    let mut lines = Vec::new();
    if progressed.done < progressed.cells {
        lines.push(format!(
            "The table is not finished: {} cells are missing; rerun the command to resume.",
            progressed.cells - progressed.done
        ));
    }
    lines.extend(experiment.notes.iter().map(|n| format!("{n}.")));
    lines.extend(progressed.unfit.iter().map(|u| format!("Left out, does not fit: {u}.")));
    let mut failures: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for cell in cells {
        if let Some(failure) = &cell.failure {
            *failures.entry((&cell.method, &cell.task, failure)).or_default() += 1;
        }
    }
    let failed = |((m, t, f), n): (&(&str, &str, &str), &usize)| {
        format!("{m} on {t}: {n} cells have no result ({f}).")
    };
    lines.extend(failures.iter().map(failed));
    let diverged: usize = cells.iter().filter(|c| c.failure.is_none()).map(|c| c.diverged).sum();
    if diverged > 0 {
        lines.push(format!("{diverged} chains diverged in cells that have others; numbers leave them out."));
    }
    let blind = cells.iter().filter(|c| c.failure.is_none() && c.lpips.is_none()).count();
    if blind > 0
        && let Some(weights) = experiment.missing_lpips()
    {
        let hint = assets::hint(weights);
        lines.push(format!(
            "{blind} cells have no LPIPS: its weights are missing. Run `{hint}`, then rerun the command."
        ));
    }
    if !experiment.is_enough_for_fid() && !experiment.is_discrete() {
        lines.push(format!("No FID: it needs at least {FEWEST_FOR_FID} colour images."));
    }
    if let Some(weights) = experiment.missing_inception() {
        let hint = assets::hint(weights);
        lines.push(format!("No FID: its weights are missing. Run `{hint}`, then rerun the command."));
    }
    lines
}

/// What the numbers are.
fn how_to_read(experiment: &Experiment, cells: &[Cell]) -> Vec<String> {
    let mut lines = Vec::new();
    lines.push(
        "± is the standard error over images; seeds of one image are averaged first. A count in brackets says that not all cells \
         (images x seeds) have the number: such a mean is over fewer than its neighbours are, and never in bold. A cell without \
         a result counts as no success. Seconds are wall-clock, as this machine was when the cell first ran."
            .into(),
    );
    if !experiment.is_discrete() {
        lines.push(
            "PSNR, SSIM, LPIPS and measurement error are means over chains; in phase retrieval, those of the chain that was \
             chosen without the truth. χ² is the residual per number at the true noise (1 for posterior samples), diversity is \
             E‖s-s'‖²/E‖s-truth‖² (1 for posterior samples) with both means over images. Coverage is the share of the true values \
             between the smallest and the largest sample, (n-1)/(n+1) for n posterior samples."
                .into(),
        );
    }
    let means: Vec<&str> = experiment
        .config
        .methods
        .iter()
        .filter(|m| m.answer == Answer::Mean)
        .map(|m| m.label.as_str())
        .collect();
    if !means.is_empty() {
        lines.push(format!(
            "{}: the answer is the mean of the samples of a cell. PSNR, SSIM and LPIPS are those of the mean, and denoiser calls are \
             those of all its samples. Measurement error, χ², diversity and seconds are those of a sample.",
            means.join(", ")
        ));
    }
    let old = cells.iter().filter(|c| c.diversity.is_some() && c.apart.is_none()).count();
    if old > 0 {
        lines.push(format!(
            "{old} cells were run by an older version, which kept no more of diversity than the ratio: where a method has no \
             others, its diversity is the mean of ratios."
        ));
    }
    if experiment.classifier.is_some() {
        lines.push(
            "Accuracy is the share of samples that the bundled classifier takes for the image's label, agreement of those that \
             it takes for what it takes the true image for."
                .into(),
        );
    }
    if experiment.is_discrete() {
        lines.push(
            "A perfect picture of tokens counts 80 dB. The measurement error is the root of the share of measured tokens that \
             a sample misses."
                .into(),
        );
    }
    if !experiment.paper.is_empty() && !experiment.is_discrete() {
        lines.push(
            "The paper's figures are of FFHQ at 256x256 with its own network: compare how methods rank, not the numbers. \
             Those of DAPS are of 1000 denoiser calls in linear tasks and of 4000 in the others, whatever ours has beside them. \
             Its phase retrieval takes the best of four chains by the truth."
                .into(),
        );
    }
    lines
}
