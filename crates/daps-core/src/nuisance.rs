//! Parameters of a likelihood that nobody knows and that are drawn along with x: the hook, and an unknown noise level.
//!
//! A level of the loop draws x0 given y and the parameters θ, then θ given x0 and y. Where (x_t, θ) has the law p(x_t, θ | y),
//! so it has at the next level: the loop stays exact.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use rand_distr::{Distribution, Gamma};

use crate::tensors::{from_f64, squared_distance, to_f64};
use crate::{Address, Discrepancy, Error, Gaussian, Likelihood, Noise, Operator, Result, Smooth, Statistic};

/// A likelihood with parameters θ of its own, one list for every row.
pub trait Nuisance: Likelihood {
    /// θ before the first level, `[rows, …]`.
    fn init(&self, noise: &Noise) -> Result<Tensor>;

    /// A draw of θ given x and y.
    fn draw(&self, theta: &Tensor, x: &Tensor, noise: &Noise, at: Address) -> Result<Tensor>;

    /// The likelihood with θ known.
    fn with(&self, theta: &Tensor) -> Result<Arc<dyn Likelihood>>;
}

/// Gaussian noise whose variance v is unknown: 1/v ~ Gamma(shape, rate) before y is seen, so that 1/v given x and y is
/// Gamma(shape + m/2, rate + ‖A(x) - y‖²/2), where m numbers were measured. θ is the standard deviation √v.
#[derive(Clone)]
pub struct UnknownNoise {
    /// The same with the noise level that is thought of first.
    guess: Gaussian,
    level: f64,
    weight: f64,
}

impl UnknownNoise {
    /// The noise is thought to be about `level`, as if `weight` measured numbers had said so: shape = weight/2,
    /// rate = weight · level²/2.
    pub fn new(operator: Arc<dyn Operator>, y: Tensor, level: f64, weight: f64) -> Result<Self> {
        if !(weight.is_finite() && weight > 0.0) {
            return Err(Error::invalid("weight of the guessed noise", "a positive finite number", weight));
        }
        Ok(Self { guess: Gaussian::new(operator, y, level)?, level, weight })
    }
}

impl Likelihood for UnknownNoise {
    fn name(&self) -> &str {
        self.guess.name()
    }

    fn input_shape(&self) -> &[usize] {
        self.guess.input_shape()
    }

    fn rows(&self) -> usize {
        self.guess.rows()
    }

    fn log_prob(&self, x: &Tensor) -> Result<Vec<f64>> {
        self.guess.log_prob(x)
    }

    fn select(&self, rows: &[usize]) -> Result<Arc<dyn Likelihood>> {
        let selected = self.guess.select(rows)?;
        let Some(guess) = selected.as_gaussian() else {
            return Err(Error::missing("an unknown noise level", "Gaussian noise", self.name()));
        };
        Ok(Arc::new(Self { guess: guess.clone(), ..self.clone() }))
    }

    fn factors(&self) -> usize {
        self.guess.factors()
    }

    fn measured_by(&self) -> Option<&Arc<dyn Operator>> {
        self.guess.measured_by()
    }

    fn measurement(&self) -> Result<Option<Tensor>> {
        self.guess.measurement()
    }

    fn statistic(&self) -> Statistic {
        self.guess.statistic()
    }

    fn discrepancy(&self, x: &Tensor) -> Result<Vec<Discrepancy>> {
        self.guess.discrepancy(x)
    }

    fn fingerprint(&self) -> Option<String> {
        Some(format!("unknown noise, weight {}, {}", self.weight, self.guess.fingerprint()?))
    }

    fn as_smooth(&self) -> Option<&dyn Smooth> {
        self.guess.as_smooth()
    }

    fn as_gaussian(&self) -> Option<&Gaussian> {
        Some(&self.guess)
    }

    fn as_nuisance(&self) -> Option<&dyn Nuisance> {
        Some(self)
    }
}

impl Nuisance for UnknownNoise {
    fn init(&self, noise: &Noise) -> Result<Tensor> {
        from_f64(vec![self.level; noise.len()], &[noise.len(), 1], DType::F64)
    }

    fn draw(&self, _theta: &Tensor, x: &Tensor, noise: &Noise, at: Address) -> Result<Tensor> {
        let y = self.guess.y();
        let squares = squared_distance(&self.guess.operator().apply(x)?, y)?;
        let measured = self.guess.measured();
        let mut levels = Vec::with_capacity(squares.len());
        for (row, square) in squares.iter().enumerate() {
            let m = crate::tensors::pick(&measured, row) as f64;
            let shape = 0.5 * (self.weight + m);
            let rate = 0.5 * (self.weight * self.level.powi(2) + square);
            // A chain that diverged has no law; its level is kept, and the loop marks it.
            let level = match Gamma::new(shape, 1.0 / rate) {
                Ok(gamma) if rate.is_finite() => gamma.sample(&mut noise.stream(row, at)).sqrt().recip(),
                _ => self.level,
            };
            levels.push(level);
        }
        from_f64(levels, &[squares.len(), 1], DType::F64)
    }

    fn with(&self, theta: &Tensor) -> Result<Arc<dyn Likelihood>> {
        let levels = to_f64(theta)?;
        let guess = &self.guess;
        Ok(Arc::new(Gaussian::new(
            Arc::clone(guess.operator()),
            guess.y().clone(),
            crate::Beta::Rows(levels),
        )?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Linear, Purpose};

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
        fn as_linear(&self) -> Option<&dyn Linear> {
            None
        }
    }

    /// Given x, the precision has the Gamma law of the header: its mean and variance over many chains are those.
    #[test]
    fn the_level_given_x_has_its_conjugate_law() {
        const CHAINS: usize = 20_000;
        let (m, weight, level) = (6, 3.0, 0.4);
        let y = Tensor::zeros((CHAINS, m), DType::F64, &candle_core::Device::Cpu).unwrap();
        let x = Tensor::full(0.3, (CHAINS, m), &candle_core::Device::Cpu).unwrap();
        let unknown = UnknownNoise::new(Arc::new(Same(vec![m])), y, level, weight).unwrap();
        let noise = Noise::chains(7, CHAINS);
        let theta = unknown.init(&noise).unwrap();
        let theta = unknown.draw(&theta, &x, &noise, Address::new(0, Purpose::Nuisance, 0)).unwrap();
        let precision: Vec<f64> = to_f64(&theta).unwrap().iter().map(|s| s.powi(-2)).collect();
        let (shape, rate) =
            (0.5 * (weight + m as f64), 0.5 * (weight * level * level + m as f64 * 0.3f64.powi(2)));
        let n = CHAINS as f64;
        let mean = precision.iter().sum::<f64>() / n;
        let variance = precision.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / (n - 1.0);
        let (exact, spread) = (shape / rate, shape.sqrt() / rate);
        assert!((mean - exact).abs() < 4.0 * spread / n.sqrt(), "{mean} is not {exact}");
        // The fourth central moment of a Gamma law is (3 + 6/shape) times its variance squared.
        let error = spread * spread * ((2.0 + 6.0 / shape) / n).sqrt();
        assert!((variance - spread * spread).abs() < 4.0 * error, "{variance} is not {}", spread * spread);
    }
}
