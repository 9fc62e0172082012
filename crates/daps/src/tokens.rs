//! Tokens as pictures and back: S symbols are S grey values from dark (-1) to light (1), a mask lies in the middle.

use candle_core::Tensor;
use daps_core::real::{from_f64, with_slice};
use daps_core::{Address, Categorical, Mismatch, Noise, Operator};
use daps_priors::network::quantise;

use crate::{Error, Result};

/// Values from -1 to 1.
pub(crate) fn values(x: &Tensor, symbols: usize) -> Result<Tensor> {
    let value = |t: &u8| match usize::from(*t) {
        t if t < symbols => 2.0 * t as f64 / (symbols - 1) as f64 - 1.0,
        _ => 0.0,
    };
    let values = with_slice(x, |x: &[u8]| x.iter().map(value).collect::<Vec<f64>>())?;
    Ok(from_f64(values, x.dims(), candle_core::DType::F64)?)
}

/// The nearest tokens of pictures, and whether any value was none of the alphabet's.
pub(crate) fn tokens(pictures: &Tensor, symbols: usize) -> Result<(Tensor, bool)> {
    let tokens = quantise(pictures, symbols)?;
    let (back, given) =
        (daps_core::real::to_f64(&values(&tokens, symbols)?)?, daps_core::real::to_f64(pictures)?);
    let off = back.iter().zip(&given).any(|(a, b)| (a - b).abs() > 1e-6);
    Ok((tokens, off))
}

/// Measures tokens, some of them wrong at noise β.
pub(crate) fn measure(
    operator: &dyn Operator,
    model: &dyn Categorical,
    x0: &Tensor,
    beta: f64,
    (noise, at): (&Noise, Address),
) -> Result<Tensor> {
    Ok(Mismatch::measure(operator, x0, (model.corruption().symbols(), beta), noise, at)?)
}

/// A measurement that came as numbers: whole ones of the alphabet, or a picture's values from -1 to 1.
pub(crate) fn measured(y: &Tensor, symbols: usize, picture: bool) -> Result<Tensor> {
    if picture {
        let (tokens, off) = tokens(y, symbols)?;
        return match off {
            false => Ok(tokens),
            true => Err(Error::Config(format!(
                "measurement: expected a picture of {symbols} grey values from black to white, got others"
            ))),
        };
    }
    let whole = daps_core::real::to_f64(y)?;
    if let Some(bad) = whole.iter().find(|v| v.fract() != 0.0 || **v < 0.0 || **v >= symbols as f64) {
        let expected = format!("whole numbers below {symbols}, the alphabet's size");
        return Err(daps_core::Error::invalid("measurement", expected, bad).into());
    }
    let tokens: Vec<u8> = whole.iter().map(|v| *v as u8).collect();
    Ok(Tensor::from_vec(tokens, y.dims(), &candle_core::Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn tokens_become_grey_values_and_come_back() {
        let x = Tensor::new(&[[0u8, 1, 2, 3]], &Device::Cpu).unwrap();
        let v = values(&x, 3).unwrap();
        assert_eq!(v.flatten_all().unwrap().to_vec1::<f64>().unwrap(), [-1.0, 0.0, 1.0, 0.0]);
        let (back, off) = tokens(&v.narrow(1, 0, 3).unwrap(), 3).unwrap();
        assert_eq!((back.flatten_all().unwrap().to_vec1::<u8>().unwrap(), off), (vec![0, 1, 2], false));
        let grey = Tensor::new(&[[-0.2f64, 1.0]], &Device::Cpu).unwrap();
        let (back, off) = tokens(&grey, 2).unwrap();
        assert_eq!((back.flatten_all().unwrap().to_vec1::<u8>().unwrap(), off), (vec![0, 1], true));
    }

    #[test]
    fn measurements_of_another_alphabet_are_refused() {
        let y = Tensor::new(&[[0.0f64, 2.0]], &Device::Cpu).unwrap();
        let message = measured(&y, 2, false).unwrap_err().to_string();
        assert_eq!(message, "measurement: expected whole numbers below 2, the alphabet's size, got 2");
        let y = y.to_dtype(DType::F64).unwrap();
        assert!(measured(&y, 3, false).is_ok());
        let grey = Tensor::new(&[[0.4f64, 1.0]], &Device::Cpu).unwrap();
        assert!(measured(&grey, 2, true).unwrap_err().to_string().contains("2 grey values"));
    }
}
