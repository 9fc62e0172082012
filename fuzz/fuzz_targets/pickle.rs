//! Any bytes: the pickle reader may refuse them, and must not panic, hang or ask for memory beyond their size.
#![no_main]

use daps_priors::checkpoint::pickle;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = pickle::read(bytes);
});
