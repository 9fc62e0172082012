//! Any bytes as a PyTorch archive: zip directory, pickle, storages and strides together.
#![no_main]

use daps_priors::checkpoint::read_archive;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = read_archive(std::io::Cursor::new(bytes));
});
