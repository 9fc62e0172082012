//! NumPy's `.npy` files: little-endian numbers in C order.

use daps_core::{Error, Result};

use crate::files::Array;

/// Reads an array of booleans, integers or floating-point numbers; `what` names it in messages.
pub(crate) fn parse(what: &str, bytes: &[u8]) -> Result<Array> {
    let bad = |got: &str| Error::invalid(what, "a .npy array of numbers in C order, little-endian", got);
    let rest = bytes.strip_prefix(b"\x93NUMPY").ok_or_else(|| bad("no .npy header"))?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err(bad("an unknown version")),
    };
    if rest.len() < length {
        return Err(bad("a truncated header"));
    }
    let (header, data) = rest.split_at(length);
    let header = String::from_utf8_lossy(header);
    let field = |key: &str| {
        let at = header.find(&format!("'{key}'"))? + key.len() + 2;
        Some(header[at..].trim_start().trim_start_matches(':').trim_start())
    };
    if !field("fortran_order").is_some_and(|v| v.starts_with("False")) {
        return Err(bad("Fortran order"));
    }
    let shape = field("shape")
        .and_then(|v| v.strip_prefix('(')?.split(')').next())
        .and_then(|v| v.split(',').map(str::trim).filter(|s| !s.is_empty()).map(|s| s.parse().ok()).collect())
        .ok_or_else(|| bad("an unreadable shape"))?;
    let kind = field("descr")
        .and_then(|v| v.strip_prefix('\'')?.split('\'').next())
        .ok_or_else(|| bad("a structured type"))?;
    let values = numbers(kind, data).ok_or_else(|| bad(&format!("type '{kind}'")))?;
    Array::new(what, shape, values)
}

fn numbers(kind: &str, data: &[u8]) -> Option<Vec<f64>> {
    macro_rules! read {
        ($t:ty) => {
            data.as_chunks::<{ size_of::<$t>() }>().0.iter().map(|b| <$t>::from_le_bytes(*b) as f64).collect()
        };
    }
    Some(match kind {
        "|b1" | "|u1" => read!(u8),
        "|i1" => read!(i8),
        "<i2" => read!(i16),
        "<u2" => read!(u16),
        "<i4" => read!(i32),
        "<u4" => read!(u32),
        "<i8" => read!(i64),
        "<u8" => read!(u64),
        "<f4" => read!(f32),
        "<f8" => read!(f64),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn arrays_are_read_and_bad_ones_refused() {
        let data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }   \n";
        let array = parse("mask", &file(header, &data)).unwrap();
        assert_eq!((array.shape(), array.values()), (&[1, 2][..], &[1.5, -2.0][..]));
        let scalar = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }\n";
        assert_eq!(parse("mask", &file(scalar, &[0, 1, 1])).unwrap().shape(), [3]);
        for (bad, word) in [
            (file(&header.replace("False", "True"), &data), "Fortran"),
            (file(&header.replace("<f4", ">f4"), &data), "'>f4'"),
            (file(&header.replace("(1, 2)", "(3, 2)"), &data), "6 values"),
            (b"PNG".to_vec(), "no .npy header"),
        ] {
            let error = parse("mask", &bad).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
