//! The likelihood of measured tokens: log p(y | x) = -Hamming(A(x), y) / β². The one home of this formula.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::map_tokens;
use crate::tensors::{batched, check_rows, with_slice};
use crate::{
    Address, Discrepancy, Error, Likelihood, Local, LocalLikelihood, Noise, Operator, Result, Statistic,
    open01,
};

/// A measurement of tokens, some of which may be wrong.
#[derive(Clone)]
pub struct Mismatch {
    operator: Arc<dyn Operator>,
    /// `[rows][outputs]`.
    y: Vec<u8>,
    rows: usize,
    beta: f64,
}

impl Mismatch {
    /// Checks that operator, measurement and noise level fit together.
    pub fn new(operator: Arc<dyn Operator>, y: &Tensor, beta: f64) -> Result<Self> {
        let rows = check_rows("measurement", y, operator.output_shape())?;
        if y.dtype() != DType::U8 {
            return Err(Error::invalid("measurement", "tokens of type u8", format!("{:?}", y.dtype())));
        }
        if let Some(n) = operator.rows().filter(|n| *n != rows) {
            return Err(Error::shape("measurement", &batched(n, operator.output_shape()), y.dims()));
        }
        if !(beta.is_finite() && beta > 0.0) {
            return Err(Error::invalid("noise level beta", "a positive finite number", beta));
        }
        Ok(Self { operator, y: y.flatten_all()?.to_vec1()?, rows, beta })
    }

    /// Measures clean tokens as this likelihood believes: every measured token is right with probability
    /// 1 / (1 + (S-1) e^(-1/β²)), and else any other of the S symbols.
    pub fn measure(
        operator: &dyn Operator,
        x0: &Tensor,
        (symbols, beta): (usize, f64),
        noise: &Noise,
        at: Address,
    ) -> Result<Tensor> {
        let others = (symbols - 1) as f64;
        let right = 1.0 / (1.0 + others * (-beta.powi(-2)).exp());
        map_tokens(&operator.apply(x0)?, noise, at, |_, rng, y| {
            for token in y {
                // One number decides whether, another one what, so that streams stay in step.
                let (u, v) = (open01(rng), open01(rng));
                if u >= right {
                    let by = 1 + ((v * others) as usize).min(symbols - 2);
                    *token = ((usize::from(*token) + by) % symbols) as u8;
                }
            }
        })
    }

    /// Hamming(A(x), y) per row.
    pub fn distance(&self, x: &Tensor) -> Result<Vec<usize>> {
        let n = self.outputs();
        let seen = self.operator.apply(x)?;
        if seen.dims()[0] != self.rows {
            return Err(Error::shape("tokens", &batched(self.rows, self.operator.input_shape()), x.dims()));
        }
        let count = |(a, y): (&[u8], &[u8])| a.iter().zip(y).filter(|(a, y)| a != y).count();
        with_slice(&seen, |seen: &[u8]| seen.chunks(n).zip(self.y.chunks(n)).map(count).collect())
    }

    fn outputs(&self) -> usize {
        self.operator.output_shape().iter().product()
    }
}

impl Likelihood for Mismatch {
    fn name(&self) -> &str {
        self.operator.name()
    }

    fn input_shape(&self) -> &[usize] {
        self.operator.input_shape()
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn log_prob(&self, x: &Tensor) -> Result<Vec<f64>> {
        Ok(self.distance(x)?.into_iter().map(|d| -(d as f64) / self.beta.powi(2)).collect())
    }

    fn select(&self, rows: &[usize]) -> Result<Arc<dyn Likelihood>> {
        let n = self.outputs();
        let index: Vec<u32> = rows.iter().map(|&r| r as u32).collect();
        let y = Tensor::from_slice(&self.y, (self.rows, n), &Device::Cpu)?;
        let y = y.index_select(&Tensor::new(index, &Device::Cpu)?, 0)?;
        Ok(Arc::new(Self {
            operator: Arc::clone(&self.operator).select(rows)?,
            y: y.flatten_all()?.to_vec1()?,
            rows: rows.len(),
            beta: self.beta,
        }))
    }

    fn measured_by(&self) -> Option<&Arc<dyn Operator>> {
        Some(&self.operator)
    }

    fn measurement(&self) -> Result<Option<Tensor>> {
        let shape = batched(self.rows, self.operator.output_shape());
        Ok(Some(Tensor::from_slice(&self.y, shape, &Device::Cpu)?))
    }

    fn statistic(&self) -> Statistic {
        Statistic::Missed
    }

    /// The share of the measured tokens that the sample misses.
    fn discrepancy(&self, x: &Tensor) -> Result<Vec<Discrepancy>> {
        let row = |(row, distance): (usize, usize)| {
            let seen = match self.local() {
                Some(local) => (0..self.outputs()).filter(|&k| !local.sites_of(row, k).is_empty()).count(),
                None => self.outputs(),
            };
            let value = distance as f64 / seen.max(1) as f64;
            Discrepancy { value, deviation: f64::NAN, error: value.sqrt() }
        };
        Ok(self.distance(x)?.into_iter().enumerate().map(row).collect())
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("mismatch, beta {}, {}", self.beta, self.operator.fingerprint()?))
    }

    fn as_local(&self) -> Option<&dyn LocalLikelihood> {
        self.operator.as_local().map(|_| self as &dyn LocalLikelihood)
    }
}

impl Mismatch {
    /// The operator's power; asked for only after [`Likelihood::as_local`] has promised it.
    fn local(&self) -> Option<&dyn Local> {
        self.operator.as_local()
    }
}

impl LocalLikelihood for Mismatch {
    fn symbols(&self) -> Option<usize> {
        self.local().and_then(Local::symbols)
    }

    fn outputs(&self) -> usize {
        Self::outputs(self)
    }

    fn sites_of(&self, row: usize, output: usize) -> &[u32] {
        self.local().map_or(&[], |local| local.sites_of(row, output))
    }

    fn term(&self, row: usize, output: usize, x: &[u8]) -> f64 {
        let wrong = |local: &dyn Local| local.value(row, output, x) != self.y[row * self.outputs() + output];
        if self.local().is_some_and(wrong) { -self.beta.powi(-2) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    /// Shows its input.
    struct Same(Vec<usize>);

    impl Operator for Same {
        fn name(&self) -> &'static str {
            "same"
        }
        fn input_shape(&self) -> &[usize] {
            &self.0
        }
        fn output_shape(&self) -> &[usize] {
            &self.0
        }
        fn apply(&self, x: &Tensor) -> Result<Tensor> {
            Ok(x.clone())
        }
        fn select(self: Arc<Self>, _rows: &[usize]) -> Result<Arc<dyn Operator>> {
            Ok(self)
        }
    }

    /// A measured token has the law ∝ exp(-[it is wrong] / β²) over the alphabet.
    #[test]
    fn measurements_have_the_law_that_the_likelihood_believes() {
        let (count, symbols, beta) = (200_000, 3, 0.9f64);
        let x0 = Tensor::full(1u8, (1, count), &Device::Cpu).unwrap();
        let at = Address::new(0, Purpose::Measurement, 0);
        let noise = Noise::chains(3, 1);
        let y = Mismatch::measure(&Same(vec![count]), &x0, (symbols, beta), &noise, at).unwrap();
        let y: Vec<u8> = y.flatten_all().unwrap().to_vec1().unwrap();
        let wrong = (-1.0 / (beta * beta)).exp();
        for symbol in 0..3u8 {
            let p = if symbol == 1 { 1.0 } else { wrong } / (1.0 + 2.0 * wrong);
            let share = y.iter().filter(|t| **t == symbol).count() as f64 / count as f64;
            let error = (p * (1.0 - p) / count as f64).sqrt();
            assert!((share - p).abs() < 4.0 * error, "{symbol}: {share} is not {p} ± {error}");
        }
    }
}
