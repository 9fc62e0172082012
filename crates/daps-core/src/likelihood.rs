//! log p(y | x): measurement, operator and noise together. Kernels ask the likelihood.

use std::sync::{Arc, OnceLock};

use candle_core::{DType, Tensor};

use crate::curvature::{self, DIFFERENCE, TURNS_WITHOUT_BOUND};
use crate::operator::found_norm_squared;
use crate::tensors::{batched, check_finite, check_rows, combine, dot_rows, map_rows, pick};
use crate::{
    Address, Cosines, Differentiable, Discrepancy, Error, Noise, Nuisance, Operator, Purpose, Result, Row,
    Statistic,
};

/// log p(y | x) of every row of a batch, up to a constant.
pub trait Likelihood: Send + Sync {
    /// What it is called in messages: the operator's name.
    fn name(&self) -> &str;

    /// Shape of one x.
    fn input_shape(&self) -> &[usize];

    /// How many measurements it holds, a row each.
    fn rows(&self) -> usize {
        1
    }

    /// log p(y | x) per row, in f64.
    fn log_prob(&self, x: &Tensor) -> Result<Vec<f64>>;

    /// The likelihood of some of the rows.
    fn select(&self, rows: &[usize]) -> Result<Arc<dyn Likelihood>>;

    /// Into how many independent factors the likelihood of a row falls, one for each equal leading slice of x.
    fn factors(&self) -> usize {
        1
    }

    /// What was measured with, where there is an operator.
    fn measured_by(&self) -> Option<&Arc<dyn Operator>> {
        None
    }

    /// What was measured, `[rows, output shape…]`, where there is an operator.
    fn measurement(&self) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// What [`Likelihood::discrepancy`] measures.
    fn statistic(&self) -> Statistic {
        Statistic::Own
    }

    /// How far every row is from its measurement, in units of the noise.
    fn discrepancy(&self, x: &Tensor) -> Result<Vec<Discrepancy>> {
        Ok(vec![Discrepancy::UNKNOWN; x.dims()[0]])
    }

    /// A short text of what defines it beside the measurement, where it comes from no file: a run in a directory resumes only
    /// where it is the same.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// Parameters of its own that are drawn along with x.
    fn as_nuisance(&self) -> Option<&dyn Nuisance> {
        None
    }

    /// Its gradient in x.
    fn as_smooth(&self) -> Option<&dyn Smooth> {
        None
    }

    /// Its terms, where each depends on few tokens.
    fn as_local(&self) -> Option<&dyn LocalLikelihood> {
        None
    }

    /// The Gaussian noise model, for kernels that use the operator's structure.
    fn as_gaussian(&self) -> Option<&Gaussian> {
        None
    }
}

/// A likelihood of tokens that is a sum of terms, one for each measured token, of few tokens each.
pub trait LocalLikelihood: Likelihood {
    /// The size of the alphabet that it speaks of, where not any one will do.
    fn symbols(&self) -> Option<usize>;

    /// The number of terms of a row.
    fn outputs(&self) -> usize;

    /// The tokens that a term depends on.
    fn sites_of(&self, row: usize, output: usize) -> &[u32];

    /// One term of log p(y | x), from all of one row's x.
    fn term(&self, row: usize, output: usize, x: &[u8]) -> f64;
}

/// A likelihood with a gradient.
pub trait Smooth: Likelihood {
    /// ∇ₓ log p(y | x).
    fn gradient(&self, x: &Tensor) -> Result<Tensor>;

    /// log p(y | x) per row and factor, and its gradient, from one application of the operator.
    fn value_and_gradient(&self, x: &Tensor) -> Result<(Vec<f64>, Tensor)>;

    /// An upper bound per row (one entry, or one per row) of the curvature of -log p(y | x) where the model fits
    /// (Gauss–Newton), if one is known: step sizes follow from it.
    fn curvature(&self) -> Option<Vec<f64>> {
        None
    }

    /// About the largest curvature around x, one entry or one per row: the bound, or where none is known, what differences of
    /// the gradient say.
    fn curvature_at(&self, x: &Tensor) -> Result<Vec<f64>> {
        if let Some(bound) = self.curvature() {
            return Ok(bound);
        }
        let here = self.gradient(x)?;
        curvature::largest_eigenvalue(x, TURNS_WITHOUT_BOUND, |v| {
            let there = self.gradient(&combine(&[(&[1.0], x), (&[DIFFERENCE], v)])?)?;
            combine(&[(&[1.0 / DIFFERENCE], &here), (&[-1.0 / DIFFERENCE], &there)])
        })
    }
}

/// y = A(x) + n with independent Gaussian n: log p = -‖A(x) - y‖² / (2β²). The one home of this formula.
#[derive(Clone)]
pub struct Gaussian {
    operator: Arc<dyn Operator>,
    y: Tensor,
    beta: Beta,
    gains: OnceLock<Tensor>,
    /// What was found of ‖A‖² of an operator that does not give it; shared with other noise levels and batches.
    norm: Arc<OnceLock<Vec<f64>>>,
}

/// The standard deviation that a kernel believes the measurement noise to have.
#[derive(Clone, Debug)]
pub enum Beta {
    /// One value for all rows, or one per row.
    Rows(Vec<f64>),
    /// One value per measured number, `[1 or rows, output shape…]`.
    Each(Tensor),
}

/// Vectors from which [`Gaussian::gains`] estimates.
const PROBES: usize = 16;

impl From<f64> for Beta {
    fn from(beta: f64) -> Self {
        Self::Rows(vec![beta])
    }
}

impl Gaussian {
    /// How many numbers say something of x, per row or one for all.
    #[must_use]
    pub fn measured(&self) -> Vec<usize> {
        match self.operator.visible() {
            Some(rows) => rows.iter().map(|row| row.iter().filter(|v| **v).count()).collect(),
            None => vec![self.operator.output_shape().iter().product()],
        }
    }

    /// Checks that operator, measurement and noise level fit together.
    pub fn new(operator: Arc<dyn Operator>, y: Tensor, beta: impl Into<Beta>) -> Result<Self> {
        let rows = check_rows("measurement", &y, operator.output_shape())?;
        check_finite("measurement", &y)?;
        if let Some(n) = operator.rows().filter(|n| *n != rows) {
            return Err(Error::shape("measurement", &batched(n, operator.output_shape()), y.dims()));
        }
        let beta = beta.into();
        let positive = |values: &[f64]| match values.iter().find(|b| !(b.is_finite() && **b > 0.0)) {
            Some(bad) => Err(Error::invalid("noise level beta", "a positive finite number", bad)),
            None => Ok(()),
        };
        match &beta {
            Beta::Rows(values) => {
                positive(values)?;
                if values.len() != 1 && values.len() != rows {
                    return Err(Error::invalid("noise levels", format!("1 or {rows} values"), values.len()));
                }
            }
            Beta::Each(values) => {
                let n = check_rows("noise levels", values, operator.output_shape())?;
                if n != 1 && n != rows {
                    return Err(Error::shape("noise levels", y.dims(), values.dims()));
                }
                positive(&crate::tensors::to_f64(values)?)?;
            }
        }
        Ok(Self { operator, y, beta, gains: OnceLock::new(), norm: Arc::default() })
    }

    /// The same measurement, believed to have another noise level.
    #[must_use]
    pub fn with_beta(&self, beta: f64) -> Self {
        Self { beta: beta.into(), gains: OnceLock::new(), ..self.clone() }
    }

    /// The same measurement, believed to have independent noise of a deviation on top of its own.
    pub fn with_more_noise(&self, deviation: f64) -> Result<Self> {
        let beta = match &self.beta {
            Beta::Rows(rows) => Beta::Rows(rows.iter().map(|b| b.hypot(deviation)).collect()),
            Beta::Each(each) => Beta::Each((each.to_dtype(DType::F64)?.sqr()? + deviation.powi(2))?.sqrt()?),
        };
        Ok(Self { beta, gains: OnceLock::new(), ..self.clone() })
    }

    /// The operator A.
    #[must_use]
    pub fn operator(&self) -> &Arc<dyn Operator> {
        &self.operator
    }

    /// The measurement, `[rows, output shape…]`.
    #[must_use]
    pub fn y(&self) -> &Tensor {
        &self.y
    }

    /// The noise level.
    #[must_use]
    pub fn beta(&self) -> &Beta {
        &self.beta
    }

    /// The noise level as one number per row (or one for all), if it is the same over a row.
    #[must_use]
    pub fn beta_rows(&self) -> Option<&[f64]> {
        match &self.beta {
            Beta::Rows(values) => Some(values),
            Beta::Each(_) => None,
        }
    }

    /// Whether all rows have one operator and one noise level, and differ in their measurements alone.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        let one_beta = match &self.beta {
            Beta::Rows(beta) => beta.len() == 1,
            Beta::Each(beta) => beta.dims()[0] == 1,
        };
        one_beta && self.operator.rows().is_none()
    }

    /// Multiplies a batch in measurement space by 1/β².
    pub fn weigh(&self, r: &Tensor) -> Result<Tensor> {
        self.scale(r, 1.0, -2)
    }

    /// Multiplies a batch in measurement space by β.
    pub fn scale_by_beta(&self, r: &Tensor) -> Result<Tensor> {
        self.scale(r, 1.0, 1)
    }

    /// Multiplies a batch in measurement space by β².
    pub fn scale_by_variance(&self, r: &Tensor) -> Result<Tensor> {
        self.scale(r, 1.0, 2)
    }

    /// r · sign · β^power.
    fn scale(&self, r: &Tensor, sign: f64, power: i32) -> Result<Tensor> {
        match &self.beta {
            Beta::Rows(beta) => {
                let factor: Vec<f64> = beta.iter().map(|b| sign * b.powi(power)).collect();
                combine(&[(&factor, r)])
            }
            Beta::Each(beta) => {
                let factor = (beta.to_dtype(DType::F64)?.powf(f64::from(power))? * sign)?;
                Ok(r.broadcast_mul(&factor.to_dtype(r.dtype())?)?)
            }
        }
    }

    /// About how much of every frequency a linear operator measures: diag(T Aᵀβ⁻²A Tᵀ), `[1 or rows, input shape…]`,
    /// for preconditioning. It is estimated once, from products with a few vectors of random signs that are the same in
    /// every row, and averaged over neighbouring frequencies.
    pub fn gains(&self, cosines: &Cosines) -> Result<&Tensor> {
        if let Some(gains) = self.gains.get() {
            return Ok(gains);
        }
        let Some(linear) = self.operator.as_linear() else {
            return Err(Error::missing("gains by frequency", "a linear operator", self.operator.name()));
        };
        let rows = if self.is_shared() { 1 } else { self.y.dims()[0] };
        let shape = cosines.shape();
        let same = Noise::new(0, vec![Row { measurement: 0, chain: 0 }; rows]);
        let mut sum = Tensor::zeros(batched(rows, shape), self.y.dtype(), self.y.device())?;
        for probe in 0..PROBES {
            let at = Address::new(0, Purpose::Instance, probe);
            let signs = same.normal(at, shape, self.y.dtype())?.sign()?;
            let measured = self.weigh(&self.operator.apply(&cosines.back(&signs)?)?)?;
            sum = (sum + (cosines.forward(&linear.adjoint(&measured)?)? * signs)?)?;
        }
        let sides = (shape[1], shape[2]);
        let smooth = |_: usize, sum: &[f64], out: &mut [f64]| {
            let plane = sides.0 * sides.1;
            for (sum, out) in sum.chunks(plane).zip(out.chunks_mut(plane)) {
                for (k, out) in out.iter_mut().enumerate() {
                    let near = |at: usize, n: usize| at.saturating_sub(1)..(at + 2).min(n);
                    let (rows, columns) = (near(k / sides.1, sides.0), near(k % sides.1, sides.1));
                    let count = rows.len() * columns.len() * PROBES;
                    let total = |i: usize| sum[i * sides.1..][columns.clone()].iter().sum::<f64>();
                    *out = (rows.map(total).sum::<f64>() / count as f64).max(0.0);
                }
            }
        };
        let gains = map_rows("gains", &sum.to_dtype(DType::F64)?, shape, shape, smooth)?;
        Ok(self.gains.get_or_init(|| gains))
    }

    /// An upper bound of ‖A‖² of a linear operator, one entry for all rows or one per row: its own, or one found by power
    /// iteration, once.
    pub fn norm_squared(&self) -> Result<Vec<f64>> {
        let Some(linear) = self.operator.as_linear() else {
            return Err(Error::missing("a norm", "a linear operator", self.operator.name()));
        };
        if let Some(norm) = linear.norm_squared().or_else(|| self.norm.get().cloned()) {
            return Ok(norm);
        }
        let norm = found_norm_squared(linear)?;
        Ok(self.norm.get_or_init(|| norm).clone())
    }

    /// The largest 1/β² per row (one entry, or one per row).
    fn precision_bound(&self) -> Result<Vec<f64>> {
        match &self.beta {
            Beta::Rows(beta) => Ok(beta.iter().map(|b| 1.0 / (b * b)).collect()),
            Beta::Each(beta) => {
                let rows = beta.dims()[0];
                let values = crate::tensors::to_f64(beta)?;
                let smallest = |row: &[f64]| row.iter().copied().fold(f64::INFINITY, f64::min);
                Ok(values.chunks(values.len() / rows).map(|row| smallest(row).powi(-2)).collect())
            }
        }
    }

    /// A(x) - y.
    pub fn residual(&self, x: &Tensor) -> Result<Tensor> {
        self.residual_of(&self.operator.apply(x)?)
    }

    /// A(x) - y, given A(x).
    pub fn residual_of(&self, seen: &Tensor) -> Result<Tensor> {
        combine(&[(&[1.0], seen), (&[-1.0], &self.y)])
    }

    /// -‖residual‖²/(2β²) for every row and, within a row, for each of `factors` slices.
    fn log_prob_of_residual(&self, residual: &Tensor, factors: usize) -> Result<Vec<f64>> {
        let sliced =
            |t: &Tensor| t.reshape((t.dims()[0] * factors, t.elem_count() / (t.dims()[0] * factors)));
        let r = sliced(residual)?;
        match &self.beta {
            Beta::Rows(beta) => {
                let scaled = |(i, s): (usize, &f64)| -s / (2.0 * pick(beta, i / factors).powi(2));
                Ok(dot_rows(&r, &r)?.iter().enumerate().map(scaled).collect())
            }
            Beta::Each(_) => {
                let weighed = sliced(&self.weigh(residual)?)?;
                Ok(dot_rows(&r, &weighed)?.iter().map(|s| -0.5 * s).collect())
            }
        }
    }

    fn differentiable(&self) -> Result<&dyn Differentiable> {
        self.operator.as_differentiable().ok_or_else(|| {
            Error::missing("a gradient of the likelihood", "a differentiable operator", self.operator.name())
        })
    }
}

impl Likelihood for Gaussian {
    fn name(&self) -> &str {
        self.operator.name()
    }

    fn input_shape(&self) -> &[usize] {
        self.operator.input_shape()
    }

    fn rows(&self) -> usize {
        self.y.dims()[0]
    }

    fn log_prob(&self, x: &Tensor) -> Result<Vec<f64>> {
        self.log_prob_of_residual(&self.residual(x)?, 1)
    }

    fn select(&self, rows: &[usize]) -> Result<Arc<dyn Likelihood>> {
        let index: Vec<u32> = rows.iter().map(|&r| r as u32).collect();
        let index = Tensor::new(index, &candle_core::Device::Cpu)?;
        let beta = match &self.beta {
            Beta::Rows(values) if values.len() > 1 => Beta::Rows(rows.iter().map(|&r| values[r]).collect()),
            Beta::Each(values) if values.dims()[0] > 1 => Beta::Each(values.index_select(&index, 0)?),
            same => same.clone(),
        };
        let norm = if self.operator.rows().is_none() { Arc::clone(&self.norm) } else { Arc::default() };
        Ok(Arc::new(Self {
            operator: Arc::clone(&self.operator).select(rows)?,
            y: self.y.index_select(&index, 0)?,
            beta,
            gains: OnceLock::new(),
            norm,
        }))
    }

    fn factors(&self) -> usize {
        self.operator.factors()
    }

    fn measured_by(&self) -> Option<&Arc<dyn Operator>> {
        Some(&self.operator)
    }

    fn measurement(&self) -> Result<Option<Tensor>> {
        Ok(Some(self.y.clone()))
    }

    fn statistic(&self) -> Statistic {
        Statistic::ChiSquare
    }

    /// ‖A(x) - y‖²/(m β²) over m measured numbers, whose variance is 2/m.
    fn discrepancy(&self, x: &Tensor) -> Result<Vec<Discrepancy>> {
        let (residual, measured) = (self.residual(x)?, self.measured());
        let squares = dot_rows(&residual, &residual)?;
        let log_prob = self.log_prob_of_residual(&residual, 1)?;
        let row = |(row, (log_prob, square)): (usize, (f64, f64))| {
            let m = pick(&measured, row).max(1) as f64;
            Discrepancy {
                value: -2.0 * log_prob / m,
                deviation: (2.0 / m).sqrt(),
                error: (square / m).sqrt(),
            }
        };
        Ok(log_prob.into_iter().zip(squares).enumerate().map(row).collect())
    }

    fn fingerprint(&self) -> Option<String> {
        let beta = match &self.beta {
            Beta::Rows(beta) => format!("{beta:?}"),
            Beta::Each(beta) => format!("{:?}", crate::tensors::to_f64(beta).ok()?),
        };
        Some(format!("gaussian, beta {beta}, {}", self.operator.fingerprint()?))
    }

    fn as_smooth(&self) -> Option<&dyn Smooth> {
        self.operator.as_differentiable().is_some().then_some(self)
    }

    fn as_gaussian(&self) -> Option<&Gaussian> {
        Some(self)
    }
}

impl Smooth for Gaussian {
    fn gradient(&self, x: &Tensor) -> Result<Tensor> {
        let Beta::Rows(beta) = &self.beta else {
            let pull = &mut |seen: &Tensor| self.scale(&self.residual_of(seen)?, -1.0, -2);
            return self.differentiable()?.vjp_of(x, pull);
        };
        // (y - A(x))/β² in one pass.
        let (minus, plus): (Vec<f64>, Vec<f64>) = beta.iter().map(|b| (-b.powi(-2), b.powi(-2))).unzip();
        self.differentiable()?.vjp_of(x, &mut |seen| combine(&[(&minus, seen), (&plus, &self.y)]))
    }

    fn value_and_gradient(&self, x: &Tensor) -> Result<(Vec<f64>, Tensor)> {
        let mut value = vec![];
        let gradient = self.differentiable()?.vjp_of(x, &mut |seen| {
            let residual = self.residual_of(seen)?;
            value = self.log_prob_of_residual(&residual, self.factors())?;
            self.scale(&residual, -1.0, -2)
        })?;
        Ok((value, gradient))
    }

    fn curvature(&self) -> Option<Vec<f64>> {
        let bound = match self.operator.as_linear() {
            Some(_) => self.norm_squared().ok()?,
            None => self.operator.as_differentiable()?.lipschitz_squared()?,
        };
        let precision = self.precision_bound().ok()?;
        let rows = bound.len().max(precision.len());
        Some((0..rows).map(|row| pick(&precision, row) * pick(&bound, row)).collect())
    }

    /// The norm of Jᵀβ⁻²J at x by power iteration, and not more than the bound.
    fn curvature_at(&self, x: &Tensor) -> Result<Vec<f64>> {
        let map = self.differentiable()?;
        match self.curvature() {
            Some(bound) if !map.bound_is_loose() => Ok(bound),
            bound => curvature::gauss_newton(map, x, &self.operator.apply(x)?, &|r| self.weigh(r), bound),
        }
    }
}
