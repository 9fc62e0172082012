//! Every registered operator obeys every law, at random shapes.

use std::sync::Arc;

use candle_core::{DType, Tensor};
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
