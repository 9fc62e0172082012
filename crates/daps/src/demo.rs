//! The demonstration: every task of the paper's table on bundled faces, in one picture and one page.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use image::RgbImage;
use image::imageops::FilterType;
use toml::{Table, Value};

use crate::canvas::{self, Canvas, LETTER};
use crate::progress::Progress;
use crate::report::{self, Page, escape, number, table};
use crate::task::{NOISE, SAMPLES, TASKS, TaskInfo};
use crate::{Directory, Error, Result, Run, RunConfig, Summary, TaskConfig, bundled, files, prior};

/// What to demonstrate.
#[derive(Clone, Debug)]
pub struct Demo {
    /// Where everything is written.
    pub out: PathBuf,
    /// The prior: a bundled name or a file.
    pub prior: String,
    /// The preset.
    pub preset: String,
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

impl Demo {
    /// Solves all tasks; the directory must be new.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<Vec<Row>> {
        if bundled::PRIORS.is_empty() && !Path::new(&self.prior).is_file() {
            let what = "this build carries no trained prior; name a checkpoint with --prior FILE";
            return Err(Error::Config(what.into()));
        }
        let table = prior::named(&self.prior)?;
        files::make_directory(&self.out, false)?;
        let out = self.out.canonicalize().map_err(Error::file(&self.out, "cannot read"))?;
        files::make_directory(&out.join("images"), true)?;
        let mut rows = Vec::new();
        for (task, face) in TASKS.iter().zip(bundled::FACES.iter().cycle()) {
            let truth = out.join("images").join(face.name);
            files::write(&truth, face.bytes)?;
            let start = Instant::now();
            let run = Run::new(self.config(task, table.clone(), truth), &out)?;
            let path = out.join(task.name);
            let directory = Directory { path, resume: false, checkpoint_every: Duration::from_secs(60) };
            let summary = run.execute(&directory, progress)?;
            rows.push(Row { task, summary, seconds: start.elapsed().as_secs_f64() });
        }
        let picture = self.picture(&out)?;
        canvas::write(&out.join("demo.png"), &picture)?;
        files::write(&out.join("report.html"), page(&rows, &picture)?.as_bytes())?;
        Ok(rows)
    }

    fn config(&self, task: &TaskInfo, prior: Table, truth: PathBuf) -> RunConfig {
        RunConfig {
            version: None,
            seed: self.seed,
            samples: self.samples,
            batch: SAMPLES.max(self.samples),
            task: TaskConfig {
                operator: task.name.into(),
                shape: vec![],
                noise: NOISE,
                measurements: 1,
                truth: Some(truth),
                measurement: None,
                options: Table::new(),
            },
            prior,
            method: Table::from_iter([("preset".to_owned(), Value::from(self.preset.as_str()))]),
        }
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
        let scale = 2;
        let letters = TASKS.iter().flat_map(|t| t.title.split(' ')).map(str::len).max().unwrap_or(0);
        let (left, top) = (letters * LETTER * scale + 3 * GAP, LETTER * scale + 2 * GAP);
        let mut canvas = Canvas::new(left + columns.len() * (CELL + GAP), top + TASKS.len() * (CELL + GAP));
        for (c, (name, _)) in columns.iter().enumerate() {
            canvas.text(name, (left + c * (CELL + GAP) + 4, GAP), scale);
        }
        for (r, task) in TASKS.iter().enumerate() {
            let y = top + r * (CELL + GAP);
            let words: Vec<&str> = task.title.split(' ').collect();
            for (k, word) in words.iter().enumerate() {
                let line = LETTER * scale + 6;
                canvas.text(word, (GAP, y + CELL / 2 + k * line - words.len() * line / 2), scale);
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

/// No larger than a cell.
fn small(picture: RgbImage) -> RgbImage {
    let largest = picture.width().max(picture.height());
    if largest as usize <= CELL {
        return picture;
    }
    let scaled = |side: u32| (side * CELL as u32 / largest).max(1);
    image::imageops::resize(&picture, scaled(picture.width()), scaled(picture.height()), FilterType::Triangle)
}

fn page(rows: &[Row], picture: &RgbImage) -> Result<String> {
    let mut page = Page::new("Eight inverse problems");
    let seconds: f64 = rows.iter().map(|r| r.seconds).sum();
    page.lead(&format!(
        "{} tasks of the paper's table on faces that the prior has not seen, in {seconds:.0} seconds",
        rows.len()
    ));
    page.section("All tasks", &report::figure("rows: tasks; std: black is 0", picture, "wide")?);
    let row = |r: &Row| {
        let m = &r.summary.measurements[0];
        let of = |list: &Option<Vec<f64>>| list.as_ref().map(|l| l[m.chosen]);
        vec![
            format!("<a href=\"{0}/report.html\">{1}</a>", r.task.name, escape(r.task.title)),
            number(of(&m.psnr), 2),
            number(of(&m.ssim), 3),
            number(m.mean_psnr, 2),
            number(Some(m.chi2), 3),
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
        "χ² per number",
        "diversity",
        "denoiser calls",
        "seconds",
    ];
    page.section("Numbers", &table(&head, &cells));
    page.warnings(
        &rows
            .iter()
            .flat_map(|r| r.summary.warnings.iter().map(move |w| format!("{}: {w}", r.task.title)))
            .collect::<Vec<_>>(),
    );
    Ok(page.finish())
}
