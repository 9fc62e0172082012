//! Labels from IDX files, as MNIST has them.

use std::path::Path;

use super::read::unpacked;
use crate::{Error, Result};

/// Two big-endian numbers (the magic one and the count), then a byte for each image.
pub fn read_labels(path: &Path) -> Result<Vec<u8>> {
    let bytes = unpacked(path)?;
    let Some(&[0, 0, 8, 1, a, b, c, d]) = bytes.first_chunk() else {
        return Err(Error::file(path, "is not an IDX file of labels"));
    };
    let (count, labels) = (u32::from_be_bytes([a, b, c, d]) as usize, &bytes[8..]);
    if labels.len() != count {
        return Err(Error::file(
            path,
            format!("says that it holds {count} labels, but has {}", labels.len()),
        ));
    }
    Ok(labels.to_vec())
}
