//! Checksums of what a part does to a fixed input: they tell one part from another where neither comes from a file.

use candle_core::{DType, Device, Tensor};

use crate::tensors::{batched, to_f64};
use crate::{Address, Denoiser, Noise, Operator, Purpose, Result, Row};

/// 64-bit FNV-1a of numbers.
#[must_use]
pub fn checksum(values: &[f64]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in values.iter().flat_map(|v| v.to_bits().to_le_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// Normal draws that are the same in every row and at all times.
fn probe(rows: usize, shape: &[usize], dtype: DType) -> Result<Tensor> {
    let same = Noise::new(0, vec![Row { measurement: 0, chain: 0 }; rows]);
    same.normal(Address::new(0, Purpose::Instance, 0), shape, dtype)
}

/// An operator by its name, its shapes and what it makes of a fixed signal; nothing where it takes neither numbers nor bits.
pub(crate) fn of_operator<O: Operator + ?Sized>(operator: &O) -> Option<String> {
    let (rows, shape) = (operator.rows().unwrap_or(1), operator.input_shape());
    let numbers = probe(rows, shape, DType::F64).and_then(|x| operator.apply(&x));
    let bits = || {
        let n = rows * shape.iter().product::<usize>();
        let bits: Vec<u8> = (0..n).map(|k| u8::from(k * k % 7 % 2 == 1)).collect();
        operator.apply(&Tensor::from_vec(bits, batched(rows, shape), &Device::Cpu)?)
    };
    let seen = to_f64(&numbers.or_else(|_| bits()).ok()?).ok()?;
    let shapes = format!("{:?} to {:?}", shape, operator.output_shape());
    Some(format!("{} {shapes}, {}", operator.name(), checksum(&seen)))
}

/// A denoiser by its shape and what it makes of fixed noise at level 1.
pub(crate) fn of_denoiser<D: Denoiser + ?Sized>(denoiser: &D) -> Option<String> {
    let x = probe(1, denoiser.shape(), denoiser.dtype()).ok()?;
    let x0 = to_f64(&denoiser.denoise(&x, &1.0.into()).ok()?).ok()?;
    Some(format!("denoiser {:?}, {}", denoiser.shape(), checksum(&x0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_sees_every_bit_and_the_order() {
        assert_eq!(checksum(&[]), "cbf29ce484222325");
        let of = [
            checksum(&[1.0, 2.0]),
            checksum(&[2.0, 1.0]),
            checksum(&[1.0, 2.0f64.next_up()]),
            checksum(&[0.0]),
        ];
        assert!((0..4).all(|i| !of[..i].contains(&of[i])), "{of:?}");
        assert_ne!(checksum(&[0.0]), checksum(&[-0.0]));
    }
}
