//! The report of a run: one HTML file with its pictures inside, to be opened anywhere and sent to anyone.

mod chart;
mod html;

use daps_core::Scale;

use crate::outcome::{Curves, Outcome};
use crate::output::Gallery;
use crate::run::Run;
use crate::summary::{Measurement, Summary};
use crate::{Answer, Answers, Result};
pub use chart::{Chart, Line, label, ticks};
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
    let (about, summary) = (&run.about, &outcome.summary);
    let mut page = Page::new(&about.title);
    let noise = about.noise.as_ref().map(|noise| format!("; noise {}", escape(noise))).unwrap_or_default();
    page.lead(&format!(
        "{} samples of {} by <b>{}</b> with the prior <b>{}</b>{noise}; {} denoiser calls a sample",
        summary.samples,
        if run.names.len() == 1 {
            "one measurement".to_owned()
        } else {
            format!("{} measurements", run.names.len())
        },
        escape(run.method.info().name),
        escape(&about.prior),
        summary.nfe,
    ));
    page.lead(&answer(summary));
    page.warnings(&summary.warnings);
    if run.names.len() > 1 {
        page.section("All measurements", &overview(summary, |m| escape(&m.name)));
    }
    for (i, gallery) in galleries.iter().enumerate() {
        page.section(&escape(&run.names[i]), &measurement(run, outcome, i, gallery)?);
    }
    if run.names.len() > galleries.len() {
        page.lead(&format!(
            "{} more measurements are in the folders beside this file.",
            run.names.len() - galleries.len()
        ));
    }
    if let Some(text) = &about.text {
        page.details("Configuration", &format!("<pre>{}</pre>", escape(text)));
    }
    Ok(page.finish())
}

/// The page of runs of several shapes: all their measurements in one table, each of which leads to the report of its run.
pub(crate) fn of_shapes(title: &str, config: &str, summary: &Summary) -> String {
    let mut page = Page::new(title);
    page.lead(&format!(
        "{} samples of {} measurements of several shapes with the prior <b>{}</b>; {} denoiser calls a sample",
        summary.samples,
        summary.measurements.len(),
        escape(&summary.prior),
        summary.nfe,
    ));
    page.lead(&answer(summary));
    page.warnings(&summary.warnings);
    let link = |m: &Measurement| {
        let folder = m.name.split_once('/').map_or("", |(folder, _)| folder);
        format!("<a href=\"{}/report.html\">{}</a>", escape(folder), escape(&m.name))
    };
    page.section("All measurements", &overview(summary, link));
    page.details("Configuration", &format!("<pre>{}</pre>", escape(config)));
    page.finish()
}

/// What the answers are, for a report.
fn answer(summary: &Summary) -> String {
    let Answers { kind, calls, psnr, ssim } = &summary.answer;
    let what = match (kind, summary.measurements.first()) {
        (_, Some(found)) if summary.measurements.len() == 1 => kind.words(found),
        (Answer::Mean, _) => "the mean of the samples of a measurement".into(),
        (Answer::Sample, _) => "the sample closest to a measurement".into(),
    };
    let quality = [("PSNR", psnr, 2, " dB"), ("SSIM", ssim, 3, "")].into_iter();
    let quality = quality.filter_map(|(name, value, digits, unit)| {
        value.map(|v| format!("; {name} {}{unit}", number(Some(v), digits)))
    });
    format!("Answer: {what}; {calls} denoiser calls{}", quality.collect::<String>())
}

fn overview(summary: &Summary, name: impl Fn(&Measurement) -> String) -> String {
    let row = |m: &Measurement| {
        vec![
            name(m),
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
            summary.misfit_title(),
            "diversity",
        ],
        &rows,
    )
}

fn measurement(run: &Run, outcome: &Outcome, i: usize, gallery: &Gallery) -> Result<String> {
    let (found, curves) = (&outcome.summary.measurements[i], &outcome.curves[i]);
    let misfits: Vec<f64> =
        outcome.misfits[i * run.samples..(i + 1) * run.samples].iter().map(|m| m.value).collect();
    let mut html = String::from("<div class=pictures>");
    let other = match run.answer {
        Answer::Sample => ("posterior mean".to_owned(), &gallery.mean),
        Answer::Mean => (format!("sample {}, chosen", found.chosen), &gallery.best),
    };
    let pictures = [
        ("truth".to_owned(), &gallery.truth),
        ("measurement".to_owned(), &gallery.measurement),
        (format!("answer: {}", run.answer.words(found)), &gallery.answer),
        other,
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
    html += &numbers(run, found, &misfits, &run.scale(i));
    html += &charts(run, curves);
    if let Some(way) = &gallery.way {
        html += "<h3>The trajectory of chain 0</h3>";
        let caption = "the estimate x̂0, the draw x0|y and the renoised x_t; σ above";
        html += &figure(caption, way, "wide")?;
    }
    Ok(html)
}

fn numbers(run: &Run, found: &Measurement, misfits: &[f64], scale: &Scale) -> String {
    let chains = 0..run.samples.min(MOST_SAMPLES);
    let list = |list: &Option<Vec<f64>>, k: usize, digits| number(list.as_ref().map(|l| l[k]), digits);
    let row = |k: usize| {
        let mark = if k == found.chosen { " ← chosen" } else { "" };
        vec![
            format!("sample {k}{mark}"),
            list(&found.psnr, k, 2),
            list(&found.ssim, k, 3),
            number(Some(found.error[k]), 4),
            number(Some(misfits[k]), 3),
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
        found.statistic.as_str(),
        "denoising error at σ = 0.5",
    ];
    if found.denoising_error.is_none() {
        heads.pop();
        rows.iter_mut().for_each(|r| _ = r.pop());
    }
    let chi2 = match found.chi2.is_finite() {
        true => format!("{:.3} ({:.1} standard deviations from 1)", found.chi2, found.chi2_z),
        false => dash(),
    };
    let spread = found.spread.map(|s| match scale.unit.is_empty() {
        true => number(Some(s), 4),
        false => format!("{} ({})", number(Some(s), 4), scale.words(s)),
    });
    let own = found.parameters.as_ref().map(|all| {
        let (n, list) = (all.len().max(1) as f64, all.iter().filter_map(|p| p.first()));
        let mean = list.clone().sum::<f64>() / n;
        let spread = (list.map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0)).sqrt();
        format!("{mean:.4} ± {spread:.4}")
    });
    let coverage = match (found.coverage, found.coverage_nominal) {
        (Some(share), Some(exact)) => format!("{share:.2} ({exact:.2} for exact samples)"),
        _ => dash(),
    };
    let notes = [
        (found.statistic.as_str(), chi2),
        ("parameter of the likelihood, mean and deviation over chains", own.unwrap_or_else(dash)),
        ("diversity E‖s-s'‖²/E‖s-truth‖²", number(found.diversity, 2)),
        ("standard deviation of the samples, RMS", spread.unwrap_or_else(dash)),
        ("true values between the smallest and the largest sample", coverage),
    ];
    let notes = notes.iter().filter(|(_, v)| v != "–").map(|(k, v)| format!("<dt>{k}</dt><dd>{v}</dd>"));
    format!("{}<dl>{}</dl>", table(&heads, &rows), notes.collect::<String>())
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
    let statistic = run.problem.likelihood.statistic();
    let misfit = match statistic.expected() {
        Some(level) => chart(
            &format!("{} of x0|y ({level} = the noise)", statistic.title()),
            &curves.discrepancy,
            true,
            Some(level),
        ),
        None => chart("share of measured tokens that x0|y misses", &curves.discrepancy, false, None),
    };
    let all = [
        chart("PSNR of x0|y (dB)", &curves.psnr, false, None),
        chart("SSIM of x0|y", &curves.ssim, false, None),
        misfit,
    ];
    format!(
        "<h3>Along the levels</h3><div class=charts>{}</div>",
        all.into_iter().flatten().collect::<String>()
    )
}
