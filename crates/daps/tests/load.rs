//! Pictures of every kind that a user may bring: what becomes of them, and what is said about it.

use std::path::{Path, PathBuf};

use daps::core::candle::{Device, Tensor};
use daps::core::tensors::to_f64;
use daps::load::{Batch, Meaning, batch};
use image::{DynamicImage, ImageBuffer, Luma, LumaA, Rgb, Rgba};

fn read(path: &Path, shape: &[usize]) -> Batch {
    batch(path, &[], shape, "truth", Meaning::Pictures).unwrap_or_else(|e| panic!("{e}"))
}

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pictures").join(name)
}

fn values(batch: &Batch) -> Vec<f64> {
    to_f64(&batch.values).unwrap()
}

#[test]
fn eight_and_sixteen_bits_grey_and_colour_have_their_values() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let wide: ImageBuffer<Rgb<u16>, _> = ImageBuffer::from_pixel(4, 4, Rgb([0u16, 32768, 65535]));
    DynamicImage::ImageRgb16(wide).save(path("wide.png")).unwrap();
    let b = read(&path("wide.png"), &[3, 4, 4]);
    let v = values(&b);
    assert!(b.notes.is_empty(), "{:?}", b.notes);
    // Finer than 8 bits can say.
    for (c, expected) in [(0, -1.0), (1, 2.0 * 32768.0 / 65535.0 - 1.0), (2, 1.0)] {
        assert!(v[c * 16..(c + 1) * 16].iter().all(|x| (x - expected).abs() < 1e-6), "{c}");
    }
    ImageBuffer::from_pixel(4, 4, Luma([51u8])).save(path("grey.png")).unwrap();
    let b = read(&path("grey.png"), &[3, 4, 4]);
    assert!(values(&b).iter().all(|x| (x + 0.6).abs() < 1e-6));
    assert!(b.notes[0].ends_with("grey; the same in all three channels"), "{:?}", b.notes);
    assert_eq!(b.names, ["grey"]);
    assert!(read(&path("grey.png"), &[1, 4, 4]).notes.is_empty());
    ImageBuffer::from_pixel(4, 4, Rgb([255u8, 0, 0])).save(path("red.bmp")).unwrap();
    let b = read(&path("red.bmp"), &[1, 4, 4]);
    assert!(values(&b).iter().all(|x| (x - (2.0 * 0.2126 - 1.0)).abs() < 1e-6));
}

#[test]
fn transparency_is_laid_on_white() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("glass.png");
    ImageBuffer::from_fn(4, 4, |x, _| Rgba([0u8, 0, 0, if x < 2 { 0 } else { 255 }])).save(&path).unwrap();
    let b = read(&path, &[3, 4, 4]);
    let v = values(&b);
    assert_eq!([v[0], v[1], v[2], v[3]], [1.0, 1.0, -1.0, -1.0]);
    assert!(b.notes[0].ends_with("transparent in places; laid on white"), "{:?}", b.notes);
    ImageBuffer::from_pixel(4, 4, LumaA([7u8, 255])).save(&path).unwrap();
    assert!(read(&path, &[1, 4, 4]).notes.is_empty(), "opaque alpha is nothing to speak of");
}

#[test]
fn other_sizes_are_cropped_to_the_middle_and_resized() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.png");
    // White in the middle half, black at both ends, which the crop removes.
    ImageBuffer::from_fn(64, 32, |x, _| Luma([if (16..48).contains(&x) { 255u8 } else { 0 }]))
        .save(&path)
        .unwrap();
    let b = read(&path, &[1, 8, 8]);
    assert!(values(&b).iter().all(|v| *v > 0.99), "{:?}", values(&b));
    assert!(b.notes[0].ends_with("64x32; cropped to its middle 32x32, resized to 8x8"), "{:?}", b.notes);
    // Antialiased: a fine checkerboard becomes grey, not a moiré.
    ImageBuffer::from_fn(64, 64, |x, y| Luma([if (x + y) % 2 == 0 { 255u8 } else { 0 }]))
        .save(&path)
        .unwrap();
    assert!(values(&read(&path, &[1, 8, 8])).iter().all(|v| v.abs() < 0.05));
}

#[test]
fn cmyk_is_read_and_of_an_animation_the_first_frame() {
    let b = read(&kept("cmyk.jpg"), &[3, 24, 24]);
    let v = values(&b);
    let at = |c: usize, row: usize| v[c * 576 + row * 24 + 12];
    // Full cyan above: no red, all green and blue.
    assert!(at(0, 3) < -0.8 && at(1, 3) > 0.8 && at(2, 3) > 0.8, "{} {} {}", at(0, 3), at(1, 3), at(2, 3));
    for name in ["animated.gif", "animated.webp", "animated.png"] {
        let b = read(&kept(name), &[3, 24, 24]);
        let v = values(&b);
        assert!(v[0] > 0.9 && v[576] < -0.9, "{name}: the first frame is red");
        assert!(b.notes[0].contains("animated; its first frame is used"), "{name}: {:?}", b.notes);
    }
}

#[test]
fn names_are_unique_and_harmless() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.png", "a.bmp", "a.1.png", "b c&d.png"] {
        ImageBuffer::from_pixel(4, 4, Luma([9u8])).save(dir.path().join(name)).unwrap();
    }
    let b = read(dir.path(), &[1, 4, 4]);
    assert_eq!(b.names, ["a.1", "a", "a.2", "b_c_d"]);
    assert_eq!(b.values.dims(), [4, 1, 4, 4]);
    // Some of a folder are called and numbered as they are among all.
    let some = |files: &[&str]| {
        let files: Vec<String> = files.iter().map(|f| (*f).to_owned()).collect();
        batch(dir.path(), &files, &[1, 4, 4], "truth", Meaning::Pictures)
    };
    let b = some(&["b c&d.png", "a.bmp"]).unwrap();
    assert_eq!((b.names, b.numbers), (vec!["a".to_owned(), "b_c_d".to_owned()], vec![1, 3]));
    let error = some(&["a.bmp", "c.png"]).err().unwrap().to_string();
    assert!(error.ends_with("has no image c.png"), "{error}");
}

#[test]
fn bytes_of_an_array_mean_what_they_mean_in_a_picture() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.npy");
    Tensor::new(&[[[0u8, 51], [204, 255]]], &Device::Cpu).unwrap().write_npy(&path).unwrap();
    let b = read(&path, &[1, 2, 2]);
    let expected = [-1.0, -0.6, 0.6, 1.0];
    assert!(values(&b).iter().zip(expected).all(|(v, e)| (v - e).abs() < 1e-12), "{:?}", values(&b));
    assert!(b.notes[0].ends_with("bytes; 0 to 255 stand for -1 to 1"), "{:?}", b.notes);
    let plain = batch(&path, &[], &[1, 2, 2], "truth", Meaning::Tokens).unwrap();
    assert_eq!(values(&plain), [0.0, 51.0, 204.0, 255.0]);
    Tensor::new(&[[[0f32, 0.5], [1.0, 200.0]]], &Device::Cpu).unwrap().write_npy(&path).unwrap();
    let b = read(&path, &[1, 2, 2]);
    assert!(b.notes[0].ends_with("values from 0 to 200, where images have -1 to 1"), "{:?}", b.notes);
}
