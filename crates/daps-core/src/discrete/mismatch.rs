//! The likelihood of measured tokens: log p(y | x) = -Hamming(A(x), y) / β². The one home of this formula.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::real::{batched, check_rows, with_slice};
use crate::{Error, Likelihood, Local, LocalLikelihood, Operator, Result};

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

    /// The operator A.
    #[must_use]
    pub fn operator(&self) -> &Arc<dyn Operator> {
        &self.operator
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

    fn rows(&self) -> usize {
        self.rows
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
