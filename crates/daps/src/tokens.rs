//! Tokens as pictures and back: S symbols are S grey values from dark (-1) to light (1), a mask lies in the middle.

use candle_core::{DType, Device, Tensor};
use daps_core::Operator;
use daps_core::tensors::{from_f64, to_f64, with_slice};
use daps_priors::network::quantise;

use crate::{Error, Result};

/// What eight bits round away.
const ROUNDING: f64 = 1.0 / 127.5;

/// Values from -1 to 1.
pub(crate) fn values(x: &Tensor, symbols: usize) -> Result<Tensor> {
    let value = |t: &u8| match usize::from(*t) {
        t if t < symbols => 2.0 * t as f64 / (symbols - 1) as f64 - 1.0,
        _ => 0.0,
    };
    let values = with_slice(x, |x: &[u8]| x.iter().map(value).collect::<Vec<f64>>())?;
    Ok(from_f64(values, x.dims(), DType::F64)?)
}

/// The nearest tokens of pictures, and whether any value is far from all of the alphabet's.
pub(crate) fn tokens(pictures: &Tensor, symbols: usize) -> Result<(Tensor, bool)> {
    let tokens = quantise(pictures, symbols)?;
    let (back, given) = (to_f64(&values(&tokens, symbols)?)?, to_f64(pictures)?);
    let off = back.iter().zip(&given).any(|(a, b)| (a - b).abs() > ROUNDING);
    Ok((tokens, off))
}

/// Tokens that came as whole numbers, or the first number that is no symbol.
fn symbols_of(x: &Tensor, symbols: usize) -> Result<std::result::Result<Tensor, f64>> {
    let whole = to_f64(x)?;
    if let Some(bad) = whole.iter().find(|v| v.fract() != 0.0 || **v < 0.0 || **v >= symbols as f64) {
        return Ok(Err(*bad));
    }
    let tokens: Vec<u8> = whole.iter().map(|v| *v as u8).collect();
    Ok(Ok(Tensor::from_vec(tokens, x.dims(), &Device::Cpu)?))
}

/// True samples that came as an array: of symbols, or of their grey values.
pub(crate) fn of_array(x: &Tensor, symbols: usize) -> Result<Tensor> {
    if let Ok(tokens) = symbols_of(x, symbols)? {
        return Ok(tokens);
    }
    match tokens(x, symbols)? {
        (tokens, false) => Ok(tokens),
        (_, true) => {
            let expected = format!("whole numbers below {symbols}, or as many grey values from -1 to 1");
            Err(daps_core::Error::invalid("truth", expected, "others").into())
        }
    }
}

/// A measurement: symbols in an array, or a picture of the alphabet's grey values, anything where nothing was measured.
pub(crate) fn measured(y: &Tensor, symbols: usize, operator: &dyn Operator, picture: bool) -> Result<Tensor> {
    if !picture {
        let expected = || format!("whole numbers below {symbols}, the alphabet's size");
        return symbols_of(y, symbols)?
            .map_err(|bad| daps_core::Error::invalid("measurement", expected(), bad).into());
    }
    let outputs: usize = operator.output_shape().iter().product();
    let empty =
        |k: usize| operator.as_local().is_some_and(|l| l.sites_of(k / outputs, k % outputs).is_empty());
    let seen: Vec<f64> =
        to_f64(y)?.iter().enumerate().map(|(k, v)| if empty(k) { -1.0 } else { *v }).collect();
    match tokens(&from_f64(seen, y.dims(), DType::F64)?, symbols)? {
        (tokens, false) => Ok(tokens),
        (_, true) => Err(Error::Config(format!(
            "measurement: expected an image of {symbols} grey values from black to white, got others"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn arrays_hold_symbols_or_grey_values_and_nothing_else() {
        let of = |v: &[f64]| Tensor::from_slice(v, (1, v.len()), &Device::Cpu).unwrap();
        let list = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<u8>().unwrap();
        assert_eq!(list(&of_array(&of(&[0.0, 1.0, 1.0]), 2).unwrap()), [0, 1, 1]);
        assert_eq!(list(&of_array(&of(&[-1.0, 1.0]), 2).unwrap()), [0, 1]);
        let message = of_array(&of(&[0.3, 1.0]), 2).unwrap_err().to_string();
        assert!(message.starts_with("truth: expected whole numbers below 2"), "{message}");
    }

    #[test]
    fn measurements_of_another_alphabet_are_refused_and_hidden_pixels_may_be_grey() {
        let mask = Tensor::new(&[[[[1u8, 1], [1, 0]]]], &Device::Cpu).unwrap();
        let operator = daps_operators::Inpainting::new(&[1, 2, 2], &mask).unwrap();
        let y = |last: f64| Tensor::new(&[[[[-1.0, 1.0], [1.0, last]]]], &Device::Cpu).unwrap();
        let tokens = measured(&y(0.0), 2, &operator, true).unwrap();
        assert_eq!(tokens.flatten_all().unwrap().to_vec1::<u8>().unwrap(), [0, 1, 1, 0]);
        let grey = (y(0.0) * 0.4).unwrap();
        assert!(measured(&grey, 2, &operator, true).unwrap_err().to_string().contains("2 grey values"));
        // Every measurement has a mask of its own.
        let masks = Tensor::new(&[[[[1u8, 1], [1, 0]]], [[[1, 1], [0, 1]]]], &Device::Cpu).unwrap();
        let operator = daps_operators::Inpainting::new(&[1, 2, 2], &masks).unwrap();
        let both = Tensor::new(&[[[[-1.0f64, 1.0], [1.0, 0.0]]], [[[-1.0, 1.0], [0.0, 1.0]]]], &Device::Cpu);
        let tokens = measured(&both.unwrap(), 2, &operator, true).unwrap();
        assert_eq!(tokens.flatten_all().unwrap().to_vec1::<u8>().unwrap(), [0, 1, 1, 0, 0, 1, 0, 1]);
        let message = measured(&y(2.0), 3, &operator, false).unwrap_err().to_string();
        assert_eq!(message, "measurement: expected whole numbers below 3, the alphabet's size, got -1");
    }
}
