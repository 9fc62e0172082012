//! Demonstrations: every task of one of the paper's tables on bundled pictures, in one picture and one page.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use daps_core::tensors::batched;
use daps_methods::MethodConfig;
use image::RgbImage;
use image::imageops::FilterType;

use crate::canvas::{self, Canvas};
use crate::event::Shown;
use crate::measure::Truths;
use crate::prior::PriorConfig;
use crate::progress::Progress;
use crate::report::{self, Page, escape, number, table};
use crate::task::{self, TaskInfo};
use crate::{
    Directory, Error, Result, Run, RunConfig, Summary, TaskConfig, bundled, files, font, load, prior,
};

/// A table to demonstrate.
pub struct Subject {
    /// Its title.
    pub title: &'static str,
    /// The prior, where no other is named.
    pub prior: &'static str,
    /// The tasks.
    pub tasks: &'static [TaskInfo],
    /// What is measured, task by task.
    pictures: &'static [bundled::Picture],
}

/// The paper's main table.
pub const FACES: Subject =
    Subject { title: "Eight inverse problems", prior: "faces", tasks: task::TASKS, pictures: bundled::FACES };

/// The paper's discrete table.
pub const DISCRETE: Subject = Subject {
    title: "Three inverse problems over binary images",
    prior: "binary-digits",
    tasks: task::DISCRETE,
    pictures: bundled::DIGITS,
};

/// What to demonstrate.
pub struct Demo {
    /// The table.
    pub subject: &'static Subject,
    /// Where everything is written.
    pub out: PathBuf,
    /// The prior: a bundled name or a file.
    pub prior: String,
    /// The method.
    pub method: MethodConfig,
    /// Chains per task.
    pub samples: usize,
    /// Seed of everything that is random.
    pub seed: u64,
}

/// What came out for one task.
pub struct Row {
    /// The task.
    pub task: &'static TaskInfo,
    /// What its run found.
    pub summary: Summary,
    /// How long it took.
    pub seconds: f64,
}

/// Side of a picture in the table of pictures.
const CELL: usize = 192;
const GAP: usize = 6;
/// Samples that are shown.
const SHOWN: usize = 3;
/// Samples that run at once.
const BATCH: usize = 16;

impl Demo {
    /// Solves all tasks; the directory must be new.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<Vec<Row>> {
        let out = std::path::absolute(&self.out).map_err(Error::file(&self.out, "cannot find"))?;
        let images = out.join("images");
        // What cannot be carried out is refused before anything is written.
        let mut settings = prior::named(&self.prior)?;
        let prior = prior::build(&mut settings, &[], Path::new(""))?;
        let build = |(task, picture): (&'static TaskInfo, &'static bundled::Picture)| -> Result<_> {
            let config = self.config(task, settings.clone(), images.join(picture.name));
            config.check()?;
            let truth = truth(picture, prior.model.shape())?;
            Ok((task, picture, Run::with(config, Path::new(""), prior.clone(), Some(&truth))?))
        };
        let pictures = self.subject.pictures.iter().cycle();
        let runs = self.subject.tasks.iter().zip(pictures).map(build).collect::<Result<Vec<_>>>()?;
        files::make_directory(&self.out, false)?;
        files::make_directory(&images, true)?;
        let mut rows = Vec::new();
        for (task, picture, run) in runs {
            files::write(&images.join(picture.name), picture.bytes)?;
            let start = Instant::now();
            let path = out.join(task.name);
            let directory = Directory { path, resume: false, checkpoint_every: Duration::from_secs(60) };
            let summary = run.execute(&directory, &mut Shown(progress))?;
            rows.push(Row { task, summary, seconds: start.elapsed().as_secs_f64() });
        }
        let picture = self.picture(&out)?;
        canvas::write(&out.join("demo.png"), &picture)?;
        files::write(&out.join("report.html"), self.page(&rows, &picture)?.as_bytes())?;
        Ok(rows)
    }

    fn config(&self, task: &TaskInfo, prior: PriorConfig, truth: PathBuf) -> RunConfig {
        let task = TaskConfig { truth: Some(truth), ..TaskConfig::new(task.name) };
        let config = RunConfig::new(task, prior, self.method.clone());
        RunConfig { seed: self.seed, samples: self.samples, batch: BATCH, ..config }
    }

    /// Rows are tasks; columns are truth, measurement, samples, mean and standard deviation.
    fn picture(&self, out: &Path) -> Result<RgbImage> {
        let shown = self.samples.min(SHOWN);
        let mut columns: Vec<(String, String)> =
            vec![("truth".into(), "truth.png".into()), ("measurement".into(), "measurement.png".into())];
        columns.extend((0..shown).map(|k| (format!("sample {}", k + 1), format!("samples/{k:02}.png"))));
        columns.push(("mean".into(), "mean.png".into()));
        if self.samples > 1 {
            columns.push(("std".into(), "std.png".into()));
        }
        let tasks = self.subject.tasks;
        let words = tasks.iter().flat_map(|t| t.title().split(' '));
        let widest = words.map(|word| font::width(word, font::LARGE)).max().unwrap_or(0);
        let line = font::height(font::LARGE);
        let (left, top) = (widest + 3 * GAP, line + 2 * GAP);
        let mut canvas = Canvas::new(left + columns.len() * (CELL + GAP), top + tasks.len() * (CELL + GAP));
        for (c, (name, _)) in columns.iter().enumerate() {
            let middle = CELL.saturating_sub(font::width(name, font::LARGE)) / 2;
            canvas.text(name, (left + c * (CELL + GAP) + middle, GAP), font::LARGE);
        }
        for (r, task) in tasks.iter().enumerate() {
            let y = top + r * (CELL + GAP);
            let words: Vec<&str> = task.title().split(' ').collect();
            let first = y + CELL.saturating_sub(words.len() * line) / 2;
            for (k, word) in words.iter().enumerate() {
                canvas.text(word, (GAP, first + k * line), font::LARGE);
            }
            for (c, (_, file)) in columns.iter().enumerate() {
                let path = out.join(task.name).join(file);
                let Ok(picture) = image::open(&path) else { continue };
                let picture = small(picture.to_rgb8());
                let (w, h) = (picture.width() as usize, picture.height() as usize);
                let zoom = (CELL / w.max(h)).max(1);
                let at = (left + c * (CELL + GAP) + (CELL - w * zoom) / 2, y + (CELL - h * zoom) / 2);
                canvas.paste(&picture, at, zoom);
            }
        }
        Ok(canvas.into_picture())
    }
}

/// A bundled picture as the truth of a run.
fn truth(picture: &bundled::Picture, shape: &[usize]) -> Result<Truths> {
    let (values, _) = load::decode(Path::new(picture.name), picture.bytes, shape, true)?;
    let values = Tensor::from_vec(values, batched(1, shape), &Device::Cpu)?;
    let name = picture.name.trim_end_matches(".png").to_owned();
    Ok(Truths { values, names: vec![name], numbers: vec![0] })
}

/// No larger than a cell.
fn small(picture: RgbImage) -> RgbImage {
    let largest = picture.width().max(picture.height());
    if largest as usize <= CELL {
        return picture;
    }
    let scaled = |side: u32| (side * CELL as u32 / largest).max(1);
    image::imageops::resize(&picture, scaled(picture.width()), scaled(picture.height()), FilterType::Triangle)
}

impl Demo {
    fn page(&self, rows: &[Row], picture: &RgbImage) -> Result<String> {
        let mut page = Page::new(self.subject.title);
        let seconds: f64 = rows.iter().map(|r| r.seconds).sum();
        page.lead(&format!(
            "{} tasks with the prior <b>{}</b> on images {}, in {seconds:.0} seconds",
            rows.len(),
            escape(rows.first().map_or("", |r| r.summary.prior.as_str())),
            if self.prior == self.subject.prior {
                "that the prior has not seen"
            } else {
                "that the program carries"
            },
        ));
        page.section("All tasks", &report::figure("rows: tasks; std: black is 0", picture, "wide")?);
        let row = |r: &Row| {
            let m = &r.summary.measurements[0];
            let of = |list: &Option<Vec<f64>>| list.as_ref().map(|l| l[m.chosen]);
            vec![
                format!("<a href=\"{0}/report.html\">{1}</a>", r.task.name, escape(r.task.title())),
                number(of(&m.psnr), 2),
                number(of(&m.ssim), 3),
                number(m.mean_psnr, 2),
                number(Some(m.misfit()), 3),
                number(m.diversity, 2),
                r.summary.nfe.to_string(),
                format!("{:.1}", r.seconds),
            ]
        };
        let cells: Vec<Vec<String>> = rows.iter().map(row).collect();
        let head = [
            "task",
            "PSNR, chosen",
            "SSIM, chosen",
            "PSNR, mean",
            rows.first().map_or("", |r| r.summary.misfit_title()),
            "diversity",
            "denoiser calls",
            "seconds",
        ];
        page.section("Numbers", &table(&head, &cells));
        page.warnings(
            &rows
                .iter()
                .flat_map(|r| r.summary.warnings.iter().map(move |w| format!("{}: {w}", r.task.title())))
                .collect::<Vec<_>>(),
        );
        Ok(page.finish())
    }
}
