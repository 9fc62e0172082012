//! Masks, kernels and matrices from files, through the registry.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::to_f64;
use daps_operators::build;
use toml::Table;

fn params(key: &str, path: &Path) -> Table {
    Table::from_iter([(key.to_owned(), toml::Value::String(path.display().to_string()))])
}

fn npy(shape: &str, values: &[f32]) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}

#[test]
fn a_mask_is_the_same_from_a_picture_an_array_and_a_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let mask = [1u8, 0, 0, 1, 1, 0];
    let (png, array, tensor) =
        (folder.path().join("m.png"), folder.path().join("m.npy"), folder.path().join("m.safetensors"));
    let pixels = mask.iter().map(|v| v * 255).collect();
    image::GrayImage::from_vec(3, 2, pixels).unwrap().save(&png).unwrap();
    std::fs::write(&array, npy("2, 3", &mask.map(f32::from))).unwrap();
    let value = Tensor::from_vec(mask.to_vec(), (2, 3), &Device::Cpu).unwrap();
    candle_core::safetensors::save(&[("mask", value)].into(), &tensor).unwrap();
    for path in [&png, &array, &tensor] {
        let operator = build("inpaint", &params("mask", path), &[2, 2, 3], 0).unwrap();
        let x = Tensor::ones((1, 2, 2, 3), DType::F32, &Device::Cpu).unwrap();
        let y = to_f64(&operator.apply(&x).unwrap()).unwrap();
        assert_eq!(y, mask.repeat(2).iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), "{path:?}");
        let error = build("inpaint", &params("mask", path), &[2, 3, 3], 0).err().unwrap().to_string();
        assert!(error.contains("[1 or rows, 1 or 2, 3, 3]"), "{error}");
    }
}

/// What files say is what is measured: a whole mask and one coil of sensitivity 2 keep energy, four times over.
#[test]
fn coil_maps_and_masks_of_mri_come_from_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let (maps, mask) = (folder.path().join("maps.npy"), folder.path().join("mask.npy"));
    let twos: Vec<f32> = [2.0; 12].into_iter().chain([0.0; 12]).collect();
    std::fs::write(&maps, npy("1, 2, 3, 4", &twos)).unwrap();
    let mut table = params("maps", &maps);
    table.extend(params("mask", &mask));
    let x = Tensor::arange(0f64, 24.0, &Device::Cpu).unwrap().reshape((1, 2, 3, 4)).unwrap();
    let energy = |x: &Tensor| to_f64(x).unwrap().iter().map(|v| v * v).sum::<f64>();
    let measured = |seen: &[f32; 12]| {
        std::fs::write(&mask, npy("3, 4", seen)).unwrap();
        build("mri", &table, &[2, 3, 4], 0).unwrap().apply(&x).unwrap()
    };
    assert!((energy(&measured(&[1.0; 12])) / energy(&x) - 4.0).abs() < 1e-12);
    // The middle of the centred spectrum is the sum over the picture.
    let mut middle = [0.0; 12];
    middle[6] = 1.0;
    let sum = |part: std::ops::Range<usize>| part.sum::<usize>() as f64;
    let expected = 4.0 * (sum(0..12).powi(2) + sum(12..24).powi(2)) / 12.0;
    assert!((energy(&measured(&middle)) / expected - 1.0).abs() < 1e-12);
}

#[test]
fn kernels_and_matrices_come_from_arrays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k.npy");
    std::fs::write(&path, npy("1, 3", &[1.0, 2.0, 1.0])).unwrap();
    let x = Tensor::ones((1, 1, 4, 4), DType::F64, &Device::Cpu).unwrap();
    let sum = |table: &Table| {
        let operator = build("blur", table, &[1, 4, 4], 0).unwrap();
        to_f64(&operator.apply(&x).unwrap()).unwrap()[5]
    };
    let mut table = params("kernel", &path);
    assert!((sum(&table) - 4.0).abs() < 1e-12, "as it is");
    table.insert("normalize".to_owned(), true.into());
    assert!((sum(&table) - 1.0).abs() < 1e-12, "scaled to sum 1");

    let operator = build("dense", &params("matrix", &path), &[3], 0).unwrap();
    let y = operator.apply(&Tensor::new(&[[1f64, 1.0, -1.0]], &Device::Cpu).unwrap()).unwrap();
    assert_eq!(to_f64(&y).unwrap(), [2.0]);
    let error = build("dense", &params("matrix", &path), &[4], 0).err().unwrap().to_string();
    assert!(error.contains("[1 or rows, outputs, 4]"), "{error}");
}

#[test]
fn bad_files_are_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let nan = npy("1, 1", &[f32::NAN]);
    let black = folder.path().join("black.bmp");
    image::GrayImage::new(1, 1).save(&black).unwrap();
    for (name, key, path, word) in [
        ("inpaint", "mask", folder.path().join("none.png"), "no such file"),
        ("inpaint", "mask", write("bad.png", b"no picture"), "not an image in a known format"),
        ("inpaint", "mask", write("bad.txt", b"1 0"), "a .npy or .safetensors file"),
        ("inpaint", "mask", write("bad.safetensors", b"no"), "a readable safetensors file"),
        ("blur", "kernel", write("nan.npy", &nan), "NaN or infinite"),
        ("dense", "matrix", write("nan2.npy", &nan), "NaN or infinite"),
        ("blur", "kernel", write("huge.npy", &npy("9, 9223372036854775807", &[1.0])), "more values than"),
        ("blur", "kernel", black, "a sum that can be scaled to 1"),
        ("blur", "kernel", write("long.npy", &npy("1, 9", &[1.0; 9])), "below the image's width 1"),
    ] {
        let error = build(name, &params(key, &path), &[1, 1, 1], 0).err().unwrap().to_string();
        assert!(error.contains(word) && !error.contains('\n'), "{error}");
    }
}
