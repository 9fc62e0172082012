//! Every registered operator obeys every law, at random shapes.

use daps_operators::registry::OPERATORS;
use daps_operators::{entry, laws};
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
