//! Every registered operator obeys every law, at random shapes.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use daps_core::{Address, Noise, Operator, Purpose};
use daps_operators::mri::{coil_maps, line_mask};
use daps_operators::registry::OPERATORS;
use daps_operators::{Mri, entry, laws};
use proptest::prelude::*;

fn obeys(name: &str, size: [usize; 3], seed: u64) -> Result<(), TestCaseError> {
    let example = (entry(name).unwrap().example)(size, seed)
        .map_err(|error| TestCaseError::fail(format!("{name} {size:?}: {error}")))?;
    laws::all(&example.operator, &example.x, seed)
        .map_err(|violation| TestCaseError::fail(format!("{size:?}, seed {seed}: {violation}")))
}

#[test]
fn every_operator_obeys_every_law() {
    for entry in OPERATORS {
        let sizes = (1usize..=4, 1usize..=14, 1usize..=14).prop_map(|(c, h, w)| [c, h, w]);
        let mut runner = proptest::test_runner::TestRunner::new_with_rng(
            ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() },
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let cases = (sizes, 0u64..1000);
        runner
            .run(&cases, |(size, seed)| obeys(entry.name, size, seed))
            .unwrap_or_else(|error| panic!("{}: {error}", entry.name));
    }
}

#[test]
fn laws_hold_at_sizes_that_fill_blocks_and_lanes() {
    for entry in OPERATORS.iter().filter(|entry| entry.name != "dense") {
        for (size, seed) in [([3, 72, 40], 0), ([1, 33, 70], 1)] {
            obeys(entry.name, size, seed).unwrap_or_else(|error| panic!("{}: {error}", entry.name));
        }
    }
}

/// Odd and prime sides, wider and taller than the other, some below an operator's kernel. The seeds put no value so near to where HDR
/// clips that a finite difference reaches across.
#[test]
fn laws_hold_at_odd_sides() {
    for entry in OPERATORS {
        for (size, seed) in
            [([3, 33, 51], 8), ([1, 7, 5], 3), ([3, 5, 7], 4), ([1, 31, 17], 5), ([2, 1, 13], 6)]
        {
            obeys(entry.name, size, seed).unwrap_or_else(|error| panic!("{}: {error}", entry.name));
        }
    }
}

/// With its defaults an operator works on an image of any size, or says in one sentence what it cannot do.
#[test]
fn small_images_are_measured_or_refused_in_one_sentence() {
    let mut refused = Vec::new();
    for entry in OPERATORS.iter().filter(|entry| entry.files.iter().all(|file| !file.required)) {
        for (h, w) in [(1, 1), (1, 9), (2, 2), (2, 5), (3, 3), (3, 40), (4, 4), (5, 3), (7, 5)] {
            let channels = [3, 2, 1].into_iter();
            let built: Vec<_> = channels
                .map(|c| (entry.build)(&Default::default(), &[c, h, w], 0).map(|op| (c, op)))
                .collect();
            for found in built {
                match found {
                    Ok((c, operator)) => {
                        let x = Tensor::zeros((2, c, h, w), DType::F64, &Device::Cpu).unwrap();
                        let y = operator.apply(&x).unwrap();
                        assert_eq!(&y.dims()[1..], operator.output_shape(), "{}", entry.name);
                        // Who knows the measurement's shape knows the image's, where the operator says so.
                        let known = (entry.image_shape)(&Default::default(), y.dims()).unwrap();
                        let size = |shape: &[usize]| shape[1..].to_vec();
                        if let Some(known) = known.filter(|_| entry.name != "super_resolution") {
                            assert_eq!(size(&known), [h, w], "{}", entry.name);
                        }
                    }
                    Err(error) => {
                        let error = error.to_string();
                        assert!(error.contains("expected") && error.lines().count() == 1, "{error}");
                        refused.push((entry.name, error));
                    }
                }
            }
        }
    }
    for (name, says) in [
        ("super_resolution", "expected a whole number from 1 to the image's shorter side 3, got 4"),
        ("inpaint_box", "fits the side 1, got 0"),
        ("gaussian_blur", "expected a reach below the image's height 1 with reflect padding, got 1"),
        ("motion_blur", "below the image's height 1"),
        ("nonlinear_blur", "below the image's height 1"),
    ] {
        let found: Vec<_> = refused.iter().filter(|(of, _)| *of == name).collect();
        assert!(found.iter().any(|(_, error)| error.contains(says)), "{name}: {found:?}");
    }
}

/// The image's shape follows from the measurement's, with rows in front of it or not.
#[test]
fn the_shape_of_an_image_follows_from_its_measurement() {
    let of = |name: &str, params: &str, measured: &[usize]| {
        (entry(name).unwrap().image_shape)(&params.parse().unwrap(), measured).map_err(|e| e.to_string())
    };
    for (name, params, measured, image) in [
        ("super_resolution", "", &[3, 32, 32][..], vec![3, 128, 128]),
        ("super_resolution", "factor = 3", &[7, 1, 11, 5], vec![1, 33, 15]),
        ("gaussian_blur", "", &[3, 33, 51], vec![3, 33, 51]),
        ("inpaint", "mask = 'm.png'", &[2, 3, 33, 51], vec![3, 33, 51]),
        ("phase_retrieval", "", &[3, 49, 75], vec![3, 33, 51]),
        ("phase_retrieval", "oversample = 0.0", &[1, 5, 7], vec![1, 5, 7]),
        ("mri", "", &[4, 2, 33, 51], vec![2, 33, 51]),
    ] {
        assert_eq!(of(name, params, measured), Ok(Some(image)), "{name}");
    }
    assert_eq!(of("xor", "", &[8]), Ok(None));
    assert_eq!(of("gaussian_blur", "", &[8, 8]), Ok(None));
    let error = of("phase_retrieval", "", &[3, 52, 75]).unwrap_err();
    assert!(error.contains("expected a side that padding by 2 eighths gives, got 52"), "{error}");
    assert!(of("inpaint", "", &[3, 4, 4]).unwrap_err().contains("expected mask = FILE"));
}

/// Masks that sample points, not lines, and others in every row, of coils that all rows share.
#[test]
fn mri_with_masks_of_points_for_every_row_obeys_every_law() {
    let shape = [2, 7, 6];
    let noise = Noise::chains(2, 3);
    let at = |k| Address::new(0, Purpose::Reference, k);
    let mask = noise.normal(at(1), &shape[1..], DType::F64).unwrap().ge(0.0).unwrap();
    let operator = Mri::new(&coil_maps(3, shape[1], shape[2], 1).unwrap(), &mask).unwrap();
    let seen: Vec<Vec<bool>> = operator.visible().unwrap();
    assert!(seen.len() == 3 && seen[0] != seen[1], "every row has its own");
    let operator: Arc<dyn Operator> = Arc::new(operator);
    let x = noise.normal(at(0), &shape, DType::F64).unwrap();
    laws::all(&operator, &x, 5).unwrap();
}

/// Coils of different strength in every row: no row's norm or preconditioner may follow its neighbours'.
#[test]
fn mri_with_coils_of_its_own_for_every_row_obeys_every_law() {
    let shape = [2, 8, 10];
    let strong = |k: u64| coil_maps(3, shape[1], shape[2], k).unwrap() * (1.0 + k as f64);
    let maps: Vec<Tensor> = (0..3).map(|k| strong(k).unwrap()).collect();
    let mask = line_mask(shape[2], 2.0, 0.16, 0).unwrap();
    let operator: Arc<dyn Operator> = Arc::new(Mri::new(&Tensor::cat(&maps, 0).unwrap(), &mask).unwrap());
    let at = Address::new(0, Purpose::Reference, 0);
    let x = Noise::chains(1, 3).normal(at, &shape, DType::F64).unwrap();
    laws::all(&operator, &x, 5).unwrap();
}
