//! Data sets: folders, tars, IDX files and arrays come in alike, and what is no data set is refused in one sentence.

use std::fs;
use std::io::Write;
use std::path::Path;

use candle_core::{Device, Tensor};
use daps_priors::training::{DataConfig, Dataset, Fit};
use image::{GrayImage, Luma, Rgb, RgbImage};

fn read(dir: &Path, source: &str, shape: [usize; 3], held_out: usize, fit: Fit) -> Result<Dataset, String> {
    let config = DataConfig { source: source.into(), held_out, flip: false, fit, crops: None, left_out: 0 };
    Dataset::read(&config, shape, dir).map_err(|e| e.to_string())
}

fn first(data: &Dataset) -> Vec<f32> {
    data.train.first(1).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn png(picture: &RgbImage) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    picture.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

#[test]
fn folders_and_tars_give_the_same_images_in_the_order_of_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("pictures");
    fs::create_dir(&folder).unwrap();
    let mut archive = tar::Builder::new(Vec::new());
    for (i, name) in ["c.png", "a.png", "b.webp"].iter().enumerate() {
        let picture = RgbImage::from_pixel(4, 4, Rgb([50 * i as u8, 0, 255]));
        picture.save(folder.join(name)).unwrap();
        let bytes = fs::read(folder.join(name)).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        archive.append_data(&mut header, format!("set/{name}"), bytes.as_slice()).unwrap();
    }
    fs::write(folder.join("notes.txt"), "no picture").unwrap();
    let bytes = archive.into_inner().unwrap();
    fs::write(dir.path().join("set.tar"), &bytes).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&bytes).unwrap();
    fs::write(dir.path().join("set.tgz"), gzip.finish().unwrap()).unwrap();
    let sets =
        ["pictures", "set.tar", "set.tgz"].map(|s| read(dir.path(), s, [3, 4, 4], 1, Fit::Crop).unwrap());
    for set in &sets {
        assert_eq!((set.train.len(), set.held_out.len()), (2, 1));
        assert_eq!(set.checksum, sets[0].checksum);
        // a.png came second, c.png first: it is last by name, and held out.
        assert!((first(set)[0] - (50.0 / 127.5 - 1.0)).abs() < 1e-6);
        let held: Vec<f32> = set.held_out.first(1).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!((held[0], held[47]), (-1.0, 1.0));
    }
    let whole = read(dir.path(), "pictures", [3, 4, 4], 0, Fit::Crop).unwrap();
    assert_ne!(whole.checksum, sets[0].checksum);
    let deviation = whole.train.deviation();
    let all: Vec<f32> = whole.train.first(9).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let mean = all.iter().sum::<f32>() / all.len() as f32;
    let variance = all.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / all.len() as f32;
    assert!((deviation - f64::from(variance.sqrt())).abs() < 1e-5, "{deviation}");
}

#[test]
fn pictures_of_other_sizes_and_colours_are_made_to_fit() {
    let dir = tempfile::tempdir().unwrap();
    // Twice as wide as high: the middle square is white, the sides black.
    let wide = GrayImage::from_fn(16, 8, |x, _| Luma([if (4..12).contains(&x) { 255 } else { 0 }]));
    fs::create_dir(dir.path().join("wide")).unwrap();
    wide.save(dir.path().join("wide/a.png")).unwrap();
    let cropped = read(dir.path(), "wide", [3, 8, 8], 0, Fit::Crop).unwrap();
    assert!(first(&cropped).iter().all(|v| *v == 1.0));
    let padded = read(dir.path(), "wide", [1, 12, 18], 0, Fit::Pad).unwrap();
    let padded = first(&padded);
    let white = |i: usize, j: usize| (2..10).contains(&i) && (5..13).contains(&j);
    assert!((0..12 * 18).all(|n| (padded[n] == 1.0) == white(n / 18, n % 18)));
    let refused = read(dir.path(), "wide", [1, 8, 8], 0, Fit::Pad).unwrap_err();
    assert!(refused.ends_with("a.png: is 16x8, which does not fit into 8x8"), "{refused}");
}

/// As `daps solve` reads them.
#[test]
fn transparency_is_laid_on_white() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("glass")).unwrap();
    let glass = image::RgbaImage::from_fn(2, 1, |x, _| image::Rgba([0, 0, 0, if x == 0 { 0 } else { 255 }]));
    glass.save(dir.path().join("glass/a.png")).unwrap();
    assert_eq!(first(&read(dir.path(), "glass", [1, 1, 2], 0, Fit::Crop).unwrap()), [1.0, -1.0]);
}

#[test]
fn mirrored_images_are_mirrored() {
    let images = daps_priors::training::Images::floats([2, 1, 3], vec![1., 2., 3., 4., 5., 6.]);
    let both = images.select(&[(0, true), (0, false)]).unwrap();
    let both: Vec<f32> = both.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(both, [3., 2., 1., 6., 5., 4., 1., 2., 3., 4., 5., 6.]);
}

#[test]
fn idx_files_and_arrays_are_read_plain_and_compressed() {
    let dir = tempfile::tempdir().unwrap();
    let mut idx = vec![0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3];
    idx.extend([0u8, 51, 102, 153, 204, 255, 1, 2, 3, 4, 5, 6]);
    fs::write(dir.path().join("images-idx3-ubyte"), &idx).unwrap();
    let gzipped = |name: &str, bytes: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(bytes).unwrap();
        fs::write(dir.path().join(name), gzip.finish().unwrap()).unwrap();
    };
    gzipped("images.gz", &idx);
    for name in ["images-idx3-ubyte", "images.gz"] {
        let set = read(dir.path(), name, [1, 2, 3], 0, Fit::Crop).unwrap();
        assert_eq!(set.train.len(), 2);
        let expected = [0f32, 51., 102., 153., 204., 255.].map(|v| v / 127.5 - 1.0);
        assert_eq!(first(&set), expected);
        let padded = first(&read(dir.path(), name, [1, 4, 3], 0, Fit::Pad).unwrap());
        assert_eq!(padded, [vec![-1.0; 3], expected.to_vec(), vec![-1.0; 3]].concat());
    }
    let array = Tensor::new(&[[[0.5f32, -3.0], [1.0, 2.0]]], &Device::Cpu).unwrap();
    array.write_npy(dir.path().join("a.npy")).unwrap();
    gzipped("a.npy.gz", &fs::read(dir.path().join("a.npy")).unwrap());
    for name in ["a.npy", "a.npy.gz"] {
        assert_eq!(first(&read(dir.path(), name, [1, 2, 2], 0, Fit::Crop).unwrap()), [0.5, -3.0, 1.0, 2.0]);
    }
}

#[test]
fn what_is_no_data_set_is_refused_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    fs::create_dir(dir.path().join("empty")).unwrap();
    fs::create_dir(dir.path().join("broken")).unwrap();
    put("broken/a.png", &png(&RgbImage::new(4, 4))[..40]);
    fs::create_dir(dir.path().join("text")).unwrap();
    put("text/b.jpg", b"hello");
    fs::create_dir(dir.path().join("half")).unwrap();
    let mut jpeg = std::io::Cursor::new(vec![]);
    RgbImage::new(32, 32).write_to(&mut jpeg, image::ImageFormat::Jpeg).unwrap();
    let jpeg = jpeg.into_inner();
    put("half/a.jpg", &jpeg[..jpeg.len() - 20]);
    fs::create_dir(dir.path().join("long")).unwrap();
    // A hole: it takes no room on the disk, and is not read.
    fs::File::create(dir.path().join("long/a.png")).unwrap().set_len(300 << 20).unwrap();
    put("short-idx", &[0, 0, 8, 3, 0, 0, 0, 9]);
    put("wrong-idx", &[0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 1, 2, 3]);
    put("other.bin", b"something else entirely");
    put("cut.gz", &[0x1f, 0x8b, 8, 0, 0]);
    put("bad.npy", b"\x93NUMPY\x01\x00");
    Tensor::zeros((2, 3, 5), candle_core::DType::F32, &Device::Cpu)
        .unwrap()
        .write_npy(dir.path().join("other.npy"))
        .unwrap();
    put("nan.npy", &{
        let nan = Tensor::new(&[[[f32::NAN; 4]; 4]], &Device::Cpu).unwrap();
        nan.write_npy(dir.path().join("n.npy")).unwrap();
        fs::read(dir.path().join("n.npy")).unwrap()
    });
    for (source, shape, says) in [
        ("none", [3, 4, 4], "none: no such file or folder"),
        ("empty", [3, 4, 4], "empty: holds no images (png, apng,"),
        ("broken", [3, 4, 4], "broken/a.png: cannot be read as an image"),
        ("text", [3, 4, 4], "text/b.jpg: is not an image in a known format"),
        ("half", [3, 4, 4], "half/a.jpg: cannot be read as an image (the file is cut off)"),
        ("long", [3, 4, 4], "long/a.png: is 300 MB; the limit is 256 MB"),
        ("text", [2, 4, 4], "image files have 1 or 3 channels, the network has 2"),
        ("short-idx", [1, 4, 4], "is not a complete IDX file"),
        ("wrong-idx", [1, 4, 4], "says that it holds 2 images of 2x2, but has 3 bytes"),
        ("other.bin", [1, 4, 4], "is not a folder of images, a tar, an IDX or a .npy file"),
        ("cut.gz", [1, 4, 4], "is not a complete gzip file"),
        ("bad.npy", [1, 4, 4], "bad.npy: "),
        ("other.npy", [1, 4, 4], "expected an array of n x 1 x 4 x 4, got [2, 3, 5]"),
        ("nan.npy", [1, 4, 4], "values are NaN or infinite"),
    ] {
        let refused = read(dir.path(), source, shape, 0, Fit::Crop).unwrap_err();
        assert!(refused.contains(says), "{source}: {refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
    fs::create_dir(dir.path().join("one")).unwrap();
    put("one/a.png", &png(&RgbImage::new(4, 4)));
    let refused = read(dir.path(), "one", [3, 4, 4], 2, Fit::Crop).unwrap_err();
    assert!(refused.ends_with("has 1 images, fewer than the 2 to be held out"), "{refused}");
    // Whoever trains nothing may hold out all of them.
    let all = read(dir.path(), "one", [3, 4, 4], 1, Fit::Crop).unwrap();
    assert_eq!((all.train.len(), all.held_out.len()), (0, 1));
    let none = Dataset::split(daps_priors::training::Images::bytes([1, 2, 2], vec![]), 0).unwrap_err();
    assert_eq!(none, "holds no images");
}
