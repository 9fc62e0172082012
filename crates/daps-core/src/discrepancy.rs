//! How far a sample is from its measurement, in units that the noise model sets.

/// The misfit of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Discrepancy {
    /// The likelihood's [`Statistic`].
    pub value: f64,
    /// The standard deviation that it has under the model; NaN where none is known.
    pub deviation: f64,
    /// RMS of y - E[y | x] over what was measured, in the measurement's own unit.
    pub error: f64,
}

impl Discrepancy {
    /// What is known of a likelihood that does not say.
    pub const UNKNOWN: Self = Self { value: f64::NAN, deviation: f64::NAN, error: f64::NAN };

    /// How far the statistic lies from its expectation of 1, in its standard deviations.
    #[must_use]
    pub fn z(&self) -> f64 {
        (self.value - 1.0) / self.deviation
    }
}

/// Which statistic a likelihood's [`Discrepancy`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Statistic {
    /// ‖A(x) - y‖²/(m β²): 1 in expectation under the model.
    ChiSquare,
    /// Pearson's: the mean of (y - λ)²/λ over counts of rate λ: 1 in expectation under the model.
    Pearson,
    /// The share of measured tokens that the sample misses.
    Missed,
    /// One of the likelihood's own, or none.
    Own,
}

impl Statistic {
    /// Its name in tables.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::ChiSquare => "χ²",
            Self::Pearson => "Pearson's χ²",
            Self::Missed => "missed",
            Self::Own => "discrepancy",
        }
    }

    /// What it is under the model, where that is one number.
    #[must_use]
    pub fn expected(self) -> Option<f64> {
        (self != Self::Missed).then_some(1.0)
    }
}
