//! NumPy's `.npy` files: little-endian numbers in C order.

use candle_core::{DType, Device, Tensor};

use crate::{Error, Result};

/// Reads an array of booleans, integers or floating-point numbers. Bytes and 16 and 32 bit floats stay what they are; all
/// other numbers become f64.
pub fn parse(bytes: &[u8]) -> Result<Tensor> {
    let bad = |got: &str| Error::content("a .npy array of numbers in C order, little-endian", got);
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
    let shape: Vec<usize> = field("shape")
        .and_then(|v| v.strip_prefix('(')?.split(')').next())
        .and_then(|v| v.split(',').map(str::trim).filter(|s| !s.is_empty()).map(|s| s.parse().ok()).collect())
        .ok_or_else(|| bad("an unreadable shape"))?;
    let kind = field("descr")
        .and_then(|v| v.strip_prefix('\'')?.split('\'').next())
        .ok_or_else(|| bad("a structured type"))?;
    let size = kind.get(2..).and_then(|digits| digits.parse::<usize>().ok()).unwrap_or(0);
    // Judged before anything is allocated.
    let count = shape.iter().try_fold(1usize, |n, side| n.checked_mul(*side));
    if size > 0 && count.and_then(|n| n.checked_mul(size)) != Some(data.len()) {
        let expected = count.map_or("more values than memory holds".to_owned(), |n| format!("{n} values"));
        return Err(Error::content(format!("{expected} for shape {shape:?}"), data.len() / size));
    }
    numbers(kind, data, &shape)?.ok_or_else(|| bad(&format!("type '{kind}'")))
}

fn numbers(kind: &str, data: &[u8], shape: &[usize]) -> Result<Option<Tensor>> {
    let cpu = &Device::Cpu;
    macro_rules! wide {
        ($t:ty) => {{
            let values = data.as_chunks::<{ size_of::<$t>() }>().0.iter();
            let values: Vec<f64> = values.map(|b| <$t>::from_le_bytes(*b) as f64).collect();
            Tensor::from_vec(values, shape, cpu)?
        }};
    }
    // One byte has no order, whatever the header says of it.
    let single = kind.strip_prefix(['|', '<', '>', '=']).filter(|k| k.ends_with('1'));
    Ok(Some(match single.unwrap_or(kind) {
        "u1" => Tensor::from_raw_buffer(data, DType::U8, shape, cpu)?,
        "<f2" => Tensor::from_raw_buffer(data, DType::F16, shape, cpu)?,
        "<f4" => Tensor::from_raw_buffer(data, DType::F32, shape, cpu)?,
        "<f8" => wide!(f64),
        "b1" => wide!(u8),
        "i1" => wide!(i8),
        "<i2" => wide!(i16),
        "<u2" => wide!(u16),
        "<i4" => wide!(i32),
        "<u4" => wide!(u32),
        "<i8" => wide!(i64),
        "<u8" => wide!(u64),
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    const HEADER: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }   \n";

    fn pair() -> Vec<u8> {
        [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn arrays_are_read_and_bad_ones_refused() {
        let data = pair();
        assert_eq!(parse(&file(HEADER, &data)).unwrap().to_vec2::<f32>().unwrap(), [[1.5, -2.0]]);
        let bytes = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }\n";
        assert_eq!(parse(&file(bytes, &[0, 1, 255])).unwrap().to_vec1::<u8>().unwrap(), [0, 1, 255]);
        assert!(parse(&file(&bytes.replace("|u1", "<u1"), &[0, 1, 255])).is_ok());
        let wide = bytes.replace("|u1", "<i2").replace("(3,)", "(1,)");
        assert_eq!(parse(&file(&wide, &[255, 255])).unwrap().to_vec1::<f64>().unwrap(), [-1.0]);
        for (bad, word) in [
            (file(&HEADER.replace("False", "True"), &data), "Fortran"),
            (file(&HEADER.replace("<f4", ">f4"), &data), "'>f4'"),
            (file(&HEADER.replace("(1, 2)", "(3, 2)"), &data), "6 values"),
            (file(&HEADER.replace("(1, 2)", "(3, 9223372036854775807, 9)"), &data), "more values than"),
            (file(&HEADER.replace("(1, 2)", "(3, 9999999, 999999)"), &data), "29999967000003 values"),
            (b"PNG".to_vec(), "no .npy header"),
        ] {
            let error = parse(&bad).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    proptest! {
        /// Whatever the header says, the answer is an array or a sentence.
        #[test]
        fn damaged_files_are_refused(at in 0usize..80, byte in 0u8..=255, cut in 0usize..90) {
            let mut bytes = file(HEADER, &pair());
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(cut.max(1));
            if let Err(error) = parse(&bytes) {
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }
}
