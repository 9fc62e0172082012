//! Images and measurements of any size, in grey and in colours, of 8 and of 16 bits, upright or turned: in as they are, and out again.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use daps::core::candle::{DType, Device, Tensor};
use image::{ColorType, DynamicImage, ImageBuffer, ImageFormat, Luma, Rgb};
use serde_json::Value;

use crate::common::{solved, text};
use crate::solve::{Scene, refused};

/// The sides of the pictures; the network divides none of them.
const HEIGHT: u32 = 33;
const WIDTH: u32 = 51;

/// A small network that works at any size.
fn free(scene: &Scene) -> String {
    scene.network_with(16, "[space]\nany_size = true\n")
}

/// A smooth value of 16 bits at a place.
fn shade(x: u32, y: u32, channel: u32) -> u16 {
    (500 * x + 400 * y + 5000 * channel + 37) as u16
}

fn colour((w, h): (u32, u32)) -> DynamicImage {
    let eight = |x, y| Rgb([0, 1, 2].map(|c| (shade(x, y, c) >> 8) as u8));
    DynamicImage::ImageRgb8(ImageBuffer::from_fn(w, h, eight))
}

fn grey((w, h): (u32, u32)) -> DynamicImage {
    DynamicImage::ImageLuma8(ImageBuffer::from_fn(w, h, |x, y| Luma([(shade(x, y, 0) >> 8) as u8])))
}

fn deep((w, h): (u32, u32)) -> DynamicImage {
    let sixteen = |x, y| Rgb([0, 1, 2].map(|c| shade(x, y, c)));
    DynamicImage::ImageRgb16(ImageBuffer::from_fn(w, h, sixteen))
}

fn deep_grey((w, h): (u32, u32)) -> DynamicImage {
    DynamicImage::ImageLuma16(ImageBuffer::from_fn(w, h, |x, y| Luma([shade(x, y, 0)])))
}

/// A JPEG that a camera has written which was turned by 90 degrees: EXIF's tag of orientation is 6.
fn portrait(size: (u32, u32)) -> Vec<u8> {
    let mut jpeg = Cursor::new(Vec::new());
    colour(size).write_to(&mut jpeg, ImageFormat::Jpeg).unwrap();
    let jpeg = jpeg.into_inner();
    let exif =
        [&b"Exif\0\0MM\0*\0\0\0\x08\0\x01"[..], &[1, 0x12, 0, 3, 0, 0, 0, 1, 0, 6, 0, 0], &[0; 4]].concat();
    let length = (exif.len() as u16 + 2).to_be_bytes();
    [&jpeg[..2], &[0xff, 0xe1], &length, &exif, &jpeg[2..]].concat()
}

fn opened(path: &Path) -> DynamicImage {
    image::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn samples(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("samples.safetensors")).unwrap()
}

/// The sides of what a task measures of an image.
fn measured(task: &str, (w, h): (u32, u32)) -> (u32, u32) {
    match task {
        "super_resolution" => (w.div_ceil(4), h.div_ceil(4)),
        "phase_retrieval" => (w + w / 4 * 2, h + h / 4 * 2),
        _ => (w, h),
    }
}

/// Through every task of the table: no crop and no resize, and each file has the size, the depth and the colours of the image.
#[test]
fn every_task_keeps_size_depth_and_colour() {
    let scene = Scene::new();
    let (prior, size) = (free(&scene), (WIDTH, HEIGHT));
    for (file, picture) in [("colour.png", colour(size)), ("grey.png", grey(size)), ("deep.png", deep(size))]
    {
        picture.save(scene.path(file)).unwrap();
    }
    fs::write(scene.path("portrait.jpg"), portrait(size)).unwrap();
    let (upright, rgb) = ((HEIGHT, WIDTH), ColorType::Rgb8);
    for (file, size, color) in [
        ("colour.png", size, rgb),
        ("grey.png", size, ColorType::L8),
        ("deep.png", size, ColorType::Rgb16),
        ("portrait.jpg", upright, rgb),
    ] {
        let image = scene.text(file);
        for task in daps::task::TASKS {
            let name = format!("{}-{file}", task.name);
            let (out, path) = (scene.text(&name), scene.path(&name));
            let command = ["solve", "--task", task.name, "--image", &image, "--prior", &prior, "--out", &out];
            let rest = ["--preset", "fast", "--budget", "2", "--samples", "2", "--json"];
            let (summary, notes) = solved(&[&command[..], &rest].concat());
            assert!(!notes.contains("resized") && !notes.contains("cropped"), "{notes}");
            assert!(summary["psnr"].as_f64().unwrap().is_finite(), "{name}: {summary}");
            for written in ["truth.png", "mean.png", "best.png", "answer.png", "samples/01.png"] {
                let picture = opened(&path.join(written));
                let found = ((picture.width(), picture.height()), picture.color());
                assert_eq!(found, (size, color), "{name}: {written}");
            }
            let y = opened(&path.join("measurement.png"));
            let found = ((y.width(), y.height()), y.color());
            assert_eq!(found, (measured(task.name, size), color), "{name}");
            // The truth is the image itself, value by value.
            let (truth, given) = (opened(&path.join("truth.png")), opened(Path::new(&image)));
            assert!(file == "portrait.jpg" || truth == given, "{name}");
            let shape = format!("shape = [3, {}, {}]", size.1, size.0);
            assert!(read(&path.join("config.toml")).contains(&shape), "{name}");
        }
    }
    // The picture was turned, not only its sides: its first row is the file's first column from below.
    let truth = opened(&scene.path("hdr-portrait.jpg/truth.png")).into_rgb8();
    let file = colour((WIDTH, HEIGHT)).into_rgb8();
    for x in 0..HEIGHT {
        let (turned, own) = (truth.get_pixel(x, 0).0, file.get_pixel(0, HEIGHT - 1 - x).0);
        assert!((0..3).all(|c| turned[c].abs_diff(own[c]) < 16), "{x}: {turned:?} {own:?}");
    }
    // The report says deviations in the picture's unit.
    assert!(read(&scene.path("hdr-deep.png/report.html")).contains("of 65535)"));
    assert!(read(&scene.path("hdr-colour.png/report.html")).contains("of 255)"));
}

/// 8x8 pixels of 4x super-resolution mean an image of 32x32, and a spectrum the image that was padded; a shape that is given wins.
#[test]
fn the_size_of_an_image_follows_from_its_measurement() {
    let scene = Scene::new();
    let (prior, small) = (free(&scene), scene.picture("small.png", 8));
    let run = |out: &str, more: &[&str]| {
        let path = scene.text(out);
        let rest = ["--prior", &prior, "--preset", "fast", "--budget", "2", "--samples", "1", "--json"];
        solved(&[&["solve", "--out", &path], &rest[..], more].concat());
        let mean = opened(&scene.path(out).join("mean.png"));
        (mean.width(), mean.height())
    };
    let sr = ["--task", "super_resolution", "--measurement", &small];
    assert_eq!(run("sr", &sr), (32, 32));
    assert_eq!(run("sr-2", &[&sr[..], &["--factor", "2"]].concat()), (16, 16));
    assert_eq!(run("sr-shape", &[&sr[..], &["--shape", "3,30,32"]].concat()), (32, 30));
    assert_eq!(run("blur", &["--task", "gaussian_blur", "--measurement", &small]), (8, 8));
    colour((WIDTH, HEIGHT)).save(scene.path("a.png")).unwrap();
    let image = scene.text("a.png");
    assert_eq!(run("phase", &["--task", "phase_retrieval", "--image", &image]), (WIDTH, HEIGHT));
    let y = scene.text("phase/measurement.safetensors");
    assert_eq!(run("again", &["--task", "phase_retrieval", "--measurement", &y]), (WIDTH, HEIGHT));
    assert!(samples(&scene.path("phase")) == samples(&scene.path("again")));
    // An image of another shape than the given one is cropped and resized as for any prior.
    let shaped = run("shaped", &["--task", "hdr", "--image", &image, "--shape", "3,16,16"]);
    assert_eq!(shaped, (16, 16));
    // What has no shape that follows needs one.
    Tensor::zeros(8, DType::F32, &Device::Cpu).unwrap().write_npy(scene.path("y.npy")).unwrap();
    let (y, out) = (scene.text("y.npy"), scene.text("none"));
    let command = ["solve", "--task", "hdr", "--measurement", &y, "--prior", &prior, "--out", &out];
    refused(&command, Path::new(&out), "does not follow from an input of shape [8]; pass --shape");
}

/// Two images of one shape and one of another: two runs, one report; a resumed one reads back what is finished, and an image's samples
/// do not depend on the shapes of the others.
#[test]
fn a_folder_of_shapes_becomes_a_run_of_each_in_one_report() {
    let scene = Scene::new();
    let prior = free(&scene);
    for folder in ["in", "same"] {
        fs::create_dir(scene.path(folder)).unwrap();
        colour((20, 16)).save(scene.path(folder).join("a.png")).unwrap();
        colour((20, 16)).rotate180().save(scene.path(folder).join("c.png")).unwrap();
    }
    deep_grey((12, 18)).save(scene.path("in/b.png")).unwrap();
    colour((20, 16)).fliph().save(scene.path("same/b.png")).unwrap();
    let run = |input: &str, out: &str, more: &[&str]| {
        let (input, out) = (scene.text(input), scene.text(out));
        let command = ["solve", "--task", "motion_blur", "--image", &input, "--prior", &prior, "--out", &out];
        let rest = ["--preset", "fast", "--budget", "2", "--samples", "2", "--json"];
        solved(&[&command[..], &rest, more].concat())
    };
    let (summary, notes) = run("in", "out", &[]);
    assert!(notes.contains("16x20: 2 images") && notes.contains("18x12: 1 image"), "{notes}");
    let names: Vec<&str> =
        summary["measurements"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["16x20/a", "16x20/c", "18x12/b"]);
    assert_eq!((&summary["samples"], &summary["diverged"]), (&6.into(), &0.into()));
    let out = scene.path("out");
    let numbers: Value = serde_json::from_str(&read(&out.join("metrics.json"))).unwrap();
    assert_eq!(numbers, summary);
    let page = read(&out.join("report.html"));
    for (folder, name) in [("16x20", "a"), ("16x20", "c"), ("18x12", "b")] {
        let link = format!("<a href=\"{folder}/report.html\">{folder}/{name}</a>");
        assert!(page.contains(&link) && out.join(folder).join("report.html").is_file(), "{link}");
    }
    // One image of its shape has the run's folder, several have one each; each keeps its own depth and colour.
    assert_eq!(opened(&out.join("18x12/answer.png")).color(), ColorType::L16);
    assert_eq!(opened(&out.join("16x20/c/answer.png")).color(), ColorType::Rgb8);

    // Killed between the two: the first is read back, the second is drawn again.
    let before = samples(&out.join("18x12"));
    fs::remove_dir_all(out.join("18x12")).unwrap();
    fs::remove_file(out.join("metrics.json")).unwrap();
    let (again, notes) = run("in", "out", &["--resume"]);
    assert!(notes.contains("already finished") && again == summary, "{notes}");
    assert!(samples(&out.join("18x12")) == before && read(&out.join("report.html")) == page);
    // The files of all and of each repeat their runs.
    for (config, folder) in [("out/config.toml", "all"), ("out/16x20/config.toml", "one")] {
        solved(&["run", &scene.text(config), "--out", &scene.text(folder), "--json"]);
    }
    assert!(samples(&scene.path("all/18x12")) == before);
    assert!(samples(&scene.path("one")) == samples(&out.join("16x20")));

    // Where all have one shape the run is as ever, and the third image's samples are the same.
    let (same, _) = run("same", "same-out", &[]);
    assert_eq!(same["measurements"][2]["name"], "c");
    assert!(!scene.path("same-out/16x20").exists());
    let sample = |path: &str| fs::read(scene.path(path)).unwrap();
    assert!(sample("same-out/c/samples/01.png") == sample("out/16x20/c/samples/01.png"));
    assert!(sample("same-out/c/samples/01.png") != sample("same-out/a/samples/01.png"));

    // Another run does not go on here.
    let (input, taken) = (scene.text("in"), scene.text("out"));
    let command = ["solve", "--task", "motion_blur", "--image", &input, "--prior", &prior, "--out", &taken];
    let never = scene.path("never");
    refused(&command, &never, "already exists and is not empty");
    refused(
        &[&command[..], &["--resume", "--seed", "5"]].concat(),
        &never,
        "holds a run of another configuration",
    );
}

/// Files have the image's full size; strips and reports have small pictures.
#[test]
fn large_images_have_small_previews() {
    let scene = Scene::new();
    let (prior, out) = (free(&scene), scene.text("out"));
    colour((600, 6)).save(scene.path("wide.png")).unwrap();
    let image = scene.text("wide.png");
    let command = ["solve", "--task", "hdr", "--image", &image, "--prior", &prior, "--out", &out, "--json"];
    solved(&[&command[..], &["--preset", "fast", "--budget", "2", "--samples", "3"]].concat());
    let size = |file: &str| {
        let picture = opened(&scene.path("out").join(file));
        (picture.width(), picture.height())
    };
    for file in ["truth.png", "answer.png", "std.png", "samples/02.png"] {
        assert_eq!(size(file), (600, 6), "{file}");
    }
    // Three samples of 200 pixels.
    assert_eq!(size("samples.png"), (3 * 204, 2));
    assert!(size("trace.png").0 < 3 * 600);
    let report = read(&scene.path("out/report.html"));
    assert!(report.contains("<img width=300 height=3 ") && !report.contains("<img width=600 "));
}

#[test]
fn what_does_not_fit_is_one_sentence() {
    let scene = Scene::new();
    let (prior, out) = (free(&scene), scene.text("out"));
    let check = |task: &str, input: &[&str], says: &str| {
        let command = ["solve", "--task", task, "--prior", &prior, "--out", &out, "--budget", "2"];
        refused(&[&command[..], input].concat(), Path::new(&out), says);
    };
    colour((WIDTH, HEIGHT)).save(scene.path("a.png")).unwrap();
    let (image, tiny, mask) =
        (scene.text("a.png"), scene.picture("tiny.png", 2), scene.picture("mask.png", 16));
    let says =
        format!("mask of inpaint: expected shape [1 or rows, 1 or 3, {HEIGHT}, {WIDTH}], got [1, 1, 16, 16]");
    check("inpaint", &["--image", &image, "--mask", &mask], &says);
    check("super_resolution", &["--image", &tiny], "from 1 to the image's shorter side 2, got 4");
    check(
        "gaussian_blur",
        &["--image", &tiny, "--size", "5", "--std", "2"],
        "a reach below the image's height 2",
    );
    check(
        "super_resolution",
        &["--measurement", &image, "--factor", "1000000"],
        &format!("task.shape: expected at most 64 megapixels, got {HEIGHT}000000x{WIDTH}000000"),
    );
    let spectrum = Tensor::zeros((3, 49, 52), DType::F32, &Device::Cpu).unwrap();
    spectrum.write_npy(scene.path("y.npy")).unwrap();
    let says = "expected a side that padding by 2 eighths gives, got 52";
    check("phase_retrieval", &["--measurement", &scene.text("y.npy")], says);
    check("hdr", &["--image", &scene.text("nowhere.png")], "nowhere.png: no such file");
    fs::create_dir(scene.path("none")).unwrap();
    check("hdr", &["--image", &scene.text("none")], "holds no images");
    let own = scene.text("own.toml");
    let config = format!(
        "samples = 1\n[task]\noperator = 'hdr'\ntruth = 'none'\nimages = ['a.png']\n[prior]\nkind = 'network'\nfile = {prior:?}\n"
    );
    fs::write(&own, config).unwrap();
    fs::copy(&image, scene.path("none/b.png")).unwrap();
    let output = crate::common::daps(&["run", &own, "--out", &out]);
    assert!(text(&output.stderr).contains("has no image a.png"), "{}", text(&output.stderr));
}
