//! The report of a run: one HTML file with its pictures inside, to be opened anywhere and sent to anyone.

mod chart;
mod html;

use crate::output::Gallery;
use crate::run::Run;
use crate::summary::{Curves, Measurement, Outcome, Summary, misfit_title};
use crate::{Result, task};
pub use chart::{Chart, Line};
pub(crate) use chart::{label, ticks};
pub use html::{Page, details, escape, figure, rich, table, unbroken};

/// Measurements that a report shows.
pub(crate) const MOST_SHOWN: usize = 24;
/// Chains whose curves are drawn.
const MOST_LINES: usize = 12;
/// Samples that are shown.
const MOST_SAMPLES: usize = 16;

/// A number for people, or a dash.
#[must_use]
pub fn number(value: Option<f64>, digits: usize) -> String {
    match value {
        Some(v) if v.is_finite() => format!("{v:.digits$}"),
        Some(v) if v.is_infinite() => "∞".into(),
        _ => "–".into(),
    }
}

/// The whole page.
pub(crate) fn page(run: &Run, outcome: &Outcome, galleries: &[Gallery]) -> Result<String> {
    let (config, summary) = (&run.config, &outcome.summary);
    let mut page = Page::new(task::title(&config.task.operator));
    let prior = ["name", "file", "kind"].iter().find_map(|key| config.prior.get(*key)?.as_str());
    page.lead(&format!(
        "{} samples of {} by <b>{}</b> with the prior <b>{}</b>; noise {}, {} denoiser calls a sample",
        summary.samples,
        if run.names.len() == 1 {
            "one measurement".to_owned()
        } else {
            format!("{} measurements", run.names.len())
        },
        escape(run.method.info().name),
        escape(prior.map_or("", |p| p.rsplit('/').next().unwrap_or(p))),
        config.task.noise,
        summary.nfe,
    ));
    page.warnings(&summary.warnings);
    if run.names.len() > 1 {
        page.section("All measurements", &overview(run, summary));
    }
    for ((gallery, found), curves) in galleries.iter().zip(&summary.measurements).zip(&outcome.curves) {
        page.section(&escape(&found.name), &measurement(run, gallery, found, curves)?);
    }
    if run.names.len() > galleries.len() {
        page.lead(&format!(
            "{} more measurements are in the folders beside this file.",
            run.names.len() - galleries.len()
        ));
    }
    page.details("Configuration", &format!("<pre>{}</pre>", escape(&config.to_toml()?)));
    Ok(page.finish())
}

/// How far samples are from a measurement: χ² at its noise, or of tokens the share that is missed.
fn misfit(run: &Run, chi2: f64) -> f64 {
    if run.is_discrete() { chi2 * run.config.task.noise.powi(2) } else { chi2 }
}

fn overview(run: &Run, summary: &Summary) -> String {
    let row = |m: &Measurement| {
        vec![
            escape(&m.name),
            number(m.sample_psnr(), 2),
            number(m.sample_ssim(), 3),
            number(m.mean_psnr, 2),
            number(m.mean_ssim, 3),
            number(Some(m.misfit()), 3),
            number(m.diversity, 2),
        ]
    };
    let rows: Vec<Vec<String>> = summary.measurements.iter().map(row).collect();
    table(
        &[
            "",
            "PSNR, samples",
            "SSIM, samples",
            "PSNR, mean",
            "SSIM, mean",
            misfit_title(run.is_discrete()),
            "diversity",
        ],
        &rows,
    )
}

fn measurement(run: &Run, gallery: &Gallery, found: &Measurement, curves: &Curves) -> Result<String> {
    let mut html = String::from("<div class=pictures>");
    let pictures = [
        ("truth".to_owned(), &gallery.truth),
        ("measurement".to_owned(), &gallery.measurement),
        (format!("sample {}, chosen", found.chosen), &gallery.best),
        ("mean".to_owned(), &gallery.mean),
        (format!("standard deviation, black 0 to white {:.2}", gallery.largest), &gallery.std),
    ];
    for (caption, picture) in &pictures {
        if let Some(picture) = picture {
            html += &figure(caption, picture, "large")?;
        }
    }
    html += "</div>";
    if gallery.samples.len() > 1 {
        html += "<h3>Samples</h3><div class=pictures>";
        for (k, sample) in gallery.samples.iter().take(MOST_SAMPLES).enumerate() {
            let quality =
                found.psnr.as_ref().map(|p| format!(", {} dB", number(Some(p[k]), 1))).unwrap_or_default();
            html += &figure(&format!("{k}{quality}"), sample, "small")?;
        }
        html += "</div>";
    }
    html += &numbers(run, found);
    html += &charts(run, curves);
    if let Some(way) = &gallery.way {
        html += "<h3>The way of chain 0</h3>";
        let caption = "the estimate x̂0, the draw x0|y and the renoised x_t; σ above";
        html += &figure(caption, way, "wide")?;
    }
    Ok(html)
}

fn numbers(run: &Run, found: &Measurement) -> String {
    let chains = 0..run.config.samples.min(MOST_SAMPLES);
    let list = |list: &Option<Vec<f64>>, k: usize, digits| number(list.as_ref().map(|l| l[k]), digits);
    let row = |k: usize| {
        let mark = if k == found.chosen { " ← chosen" } else { "" };
        vec![
            format!("sample {k}{mark}"),
            list(&found.psnr, k, 2),
            list(&found.ssim, k, 3),
            number(Some(found.error[k]), 4),
            number(Some(misfit(run, (found.error[k] / run.config.task.noise).powi(2))), 3),
            list(&found.denoising_error, k, 4),
        ]
    };
    let mut rows: Vec<Vec<String>> = chains.map(row).collect();
    let dash = || "–".to_owned();
    rows.push(vec![
        "mean".into(),
        number(found.mean_psnr, 2),
        number(found.mean_ssim, 3),
        dash(),
        dash(),
        dash(),
    ]);
    let mut heads = vec![
        "",
        "PSNR (dB)",
        "SSIM",
        "measurement error, RMS",
        misfit_title(run.is_discrete()),
        "denoising error at σ = 0.5",
    ];
    if found.denoising_error.is_none() {
        heads.pop();
        rows.iter_mut().for_each(|r| _ = r.pop());
    }
    let chi2 =
        format!("{} per number ({} σ from 1)", number(Some(found.chi2), 3), number(Some(found.chi2_z), 1));
    let coverage = match (found.coverage, found.coverage_nominal) {
        (Some(share), Some(exact)) => format!("{share:.2} ({exact:.2} for exact samples)"),
        _ => dash(),
    };
    let notes = [
        ("χ²", if run.is_discrete() { dash() } else { chi2 }),
        ("diversity E‖s-s'‖²/E‖s-truth‖²", number(found.diversity, 2)),
        ("standard deviation of the samples, RMS", number(found.spread, 4)),
        ("true values between the smallest and the largest sample", coverage),
        ("R̂ across chains", number(found.r_hat, 3)),
        ("effective draws", number(found.effective, 0)),
    ];
    let notes = notes.iter().filter(|(_, v)| v != "–").map(|(k, v)| format!("<dt>{k}</dt><dd>{v}</dd>"));
    let foot = "R̂ and effective draws are of χ² along the last half of the levels.";
    format!("{}<dl>{}</dl><p class=foot>{foot}</p>", table(&heads, &rows), notes.collect::<String>())
}

fn charts(run: &Run, curves: &Curves) -> String {
    let chart = |title: &str, lists: &[Vec<f64>], log: bool, level: Option<f64>| {
        let lines: Vec<Line> = lists
            .iter()
            .take(MOST_LINES)
            .map(|list| Line { points: curves.sigma.iter().copied().zip(list.iter().copied()).collect() })
            .collect();
        Chart { title, x: "σ", lines: &lines, log, level }.svg()
    };
    let missed = if run.is_discrete() {
        let share = |list: &Vec<f64>| list.iter().map(|c| misfit(run, *c)).collect();
        let missed: Vec<Vec<f64>> = curves.chi2.iter().map(share).collect();
        chart("share of measured tokens that x0|y misses", &missed, false, None)
    } else {
        chart("measurement error of x0|y (χ² per number; 1 = the noise)", &curves.chi2, true, Some(1.0))
    };
    let all = [
        chart("PSNR of x0|y (dB)", &curves.psnr, false, None),
        chart("SSIM of x0|y", &curves.ssim, false, None),
        missed,
    ];
    format!(
        "<h3>Along the levels</h3><div class=charts>{}</div>",
        all.into_iter().flatten().collect::<String>()
    )
}
