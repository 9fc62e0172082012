//! Preconditioning: how a raw network F becomes D(x, σ) = c_skip x + c_out F(c_in x, c_noise).

use std::sync::Arc;

use daps_core::{Corruption, Rate};
use serde::{Deserialize, Serialize};

/// The four families of Karras et al. (EDM), table 1, and networks that are no denoisers. `kind` in a configuration names the
/// family.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Preconditioning {
    /// ε-prediction under a variance-preserving process with linear β(t): DDPM, ADM. Time is fractional.
    Vp {
        /// β at the start.
        #[serde(default = "beta_min")]
        beta_min: f64,
        /// What β grows by.
        #[serde(default = "beta_d")]
        beta_d: f64,
        /// Time steps of the training.
        #[serde(default = "steps")]
        steps: usize,
    },
    /// Scores under a variance-exploding process: NCSN++.
    Ve,
    /// ε-prediction with the cosine schedule of improved DDPM: the nearest of its time steps.
    Iddpm {
        /// Offset of the cosine.
        #[serde(default = "cosine_offset")]
        offset: f64,
        /// Smallest ratio of successive signal powers.
        #[serde(default = "smallest_ratio")]
        smallest_ratio: f64,
        /// Time steps of the training.
        #[serde(default = "steps")]
        steps: usize,
    },
    /// EDM's own.
    Edm {
        /// Standard deviation of the data.
        #[serde(default = "sigma_data")]
        sigma_data: f64,
    },
    /// None: the network gives logits of tokens ([`super::TokenPrior`]), and a noise label is all it needs.
    Tokens {
        /// The alphabet's size.
        symbols: usize,
        /// What a corrupted token turns into.
        #[serde(default)]
        rate: Rate,
    },
    /// None: the network names what a binary image shows ([`crate::Classifier`]).
    Classes,
}

fn beta_min() -> f64 {
    0.1
}
fn beta_d() -> f64 {
    19.9
}
fn steps() -> usize {
    1000
}
fn cosine_offset() -> f64 {
    0.008
}
fn smallest_ratio() -> f64 {
    0.001
}
fn sigma_data() -> f64 {
    0.5
}

/// The factors at one noise level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// Share of the input in the output.
    pub skip: f64,
    /// Factor of the network's output.
    pub out: f64,
    /// Factor of the network's input.
    pub input: f64,
    /// The noise label.
    pub noise: f64,
}

/// More time steps than any training has.
const MOST_STEPS: usize = 100_000;

impl Preconditioning {
    /// VP with the constants of DDPM and ADM.
    #[must_use]
    pub fn vp() -> Self {
        Self::Vp { beta_min: beta_min(), beta_d: beta_d(), steps: steps() }
    }

    /// EDM's with its σ_data = 0.5.
    #[must_use]
    pub fn edm() -> Self {
        Self::Edm { sigma_data: sigma_data() }
    }

    /// Improved DDPM with its published constants.
    #[must_use]
    pub fn iddpm() -> Self {
        Self::Iddpm { offset: cosine_offset(), smallest_ratio: smallest_ratio(), steps: steps() }
    }

    /// Refuses constants that are not positive.
    pub fn check(&self) -> daps_core::Result<()> {
        let (values, steps) = match *self {
            Self::Vp { beta_min, beta_d, steps } => (vec![beta_min, beta_d], steps),
            Self::Ve => (vec![], 1),
            Self::Iddpm { offset, smallest_ratio, steps } => (vec![offset, smallest_ratio], steps),
            Self::Edm { sigma_data } => (vec![sigma_data], 1),
            Self::Tokens { .. } | Self::Classes => (vec![], 1),
        };
        if let Some(bad) = values.into_iter().find(|v| !(v.is_finite() && *v > 0.0)) {
            return Err(daps_core::Error::invalid("preconditioning", "positive finite constants", bad));
        }
        if let Self::Iddpm { smallest_ratio, .. } = *self
            && smallest_ratio >= 1.0
        {
            let what = "preconditioning.smallest_ratio";
            return Err(daps_core::Error::invalid(what, "a number below 1", smallest_ratio));
        }
        if steps == 0 || steps > MOST_STEPS {
            let expected = format!("from 1 to {MOST_STEPS}");
            return Err(daps_core::Error::invalid("preconditioning.steps", expected, steps));
        }
        self.corruption().map(|_| ())
    }

    /// The chain that corrupts tokens, where the network knows tokens.
    pub fn corruption(&self) -> daps_core::Result<Option<Corruption>> {
        match *self {
            Self::Tokens { symbols, rate } => Corruption::new(symbols, rate).map(Some),
            _ => Ok(None),
        }
    }

    /// The factors at σ > 0, where one is wanted; for many, [`Preconditioning::prepared`] first.
    #[must_use]
    pub fn at(&self, sigma: f64) -> Coefficients {
        self.prepared().at(sigma)
    }

    /// With its table of noise levels, where it has one.
    #[must_use]
    pub fn prepared(self) -> Prepared {
        let levels = match self {
            Self::Iddpm { offset, smallest_ratio, steps } => iddpm_levels(offset, smallest_ratio, steps),
            _ => vec![],
        };
        Prepared { family: self, levels: levels.into() }
    }
}

/// A preconditioning that is ready for many calls.
#[derive(Clone, Debug)]
pub struct Prepared {
    family: Preconditioning,
    /// Noise levels of improved DDPM's time steps.
    levels: Arc<[f64]>,
}

impl Prepared {
    /// The factors at σ > 0.
    #[must_use]
    pub fn at(&self, sigma: f64) -> Coefficients {
        use Preconditioning::{Classes, Edm, Iddpm, Tokens, Ve, Vp};
        let unit = 1.0 / (sigma * sigma + 1.0).sqrt();
        match self.family {
            Vp { beta_min, beta_d, steps } => {
                let t = ((beta_min * beta_min + 2.0 * beta_d * (sigma * sigma).ln_1p()).sqrt() - beta_min)
                    / beta_d;
                Coefficients { skip: 1.0, out: -sigma, input: unit, noise: (steps - 1) as f64 * t }
            }
            Ve => Coefficients { skip: 1.0, out: sigma, input: 1.0, noise: (sigma / 2.0).ln() },
            Iddpm { steps, .. } => {
                // The levels fall: the nearest is the first below σ or the one before it, which wins a tie.
                let below = self.levels.partition_point(|level| *level > sigma).clamp(1, steps);
                let closer = (self.levels[below] - sigma).abs() < (self.levels[below - 1] - sigma).abs();
                let nearest = if closer { below } else { below - 1 };
                let noise = steps as f64 - 1.0 - nearest as f64;
                Coefficients { skip: 1.0, out: -sigma, input: unit, noise }
            }
            Edm { sigma_data: s } => {
                let total = sigma * sigma + s * s;
                let (skip, out) = (s * s / total, sigma * s / total.sqrt());
                Coefficients { skip, out, input: 1.0 / total.sqrt(), noise: sigma.ln() / 4.0 }
            }
            Tokens { .. } | Classes => {
                Coefficients { skip: 0.0, out: 1.0, input: 1.0, noise: sigma.ln() / 4.0 }
            }
        }
    }
}

/// Noise levels of improved DDPM's time steps, from the largest down to 0.
fn iddpm_levels(offset: f64, smallest_ratio: f64, steps: usize) -> Vec<f64> {
    let power = |j: usize| {
        let angle = std::f64::consts::FRAC_PI_2 * j as f64 / steps as f64 / (offset + 1.0);
        angle.sin().powi(2)
    };
    let mut levels = vec![0.0; steps + 1];
    for j in (1..=steps).rev() {
        let ratio = (power(j - 1) / power(j)).max(smallest_ratio);
        levels[j - 1] = ((levels[j] * levels[j] + 1.0) / ratio - 1.0).sqrt();
    }
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_families_have_their_known_limits() {
        let vp = Preconditioning::vp();
        // At t = 1 the signal's power is exp(-(β_d/2 + β_min)), so σ² = exp(β_d/2 + β_min) - 1.
        let last = ((19.9f64 / 2.0 + 0.1).exp() - 1.0).sqrt();
        assert!((vp.at(last).noise - 999.0).abs() < 1e-9);
        let edm = Preconditioning::edm().at(0.5);
        assert!((edm.skip - 0.5).abs() < 1e-12 && (edm.out - 0.5f64.sqrt() / 2.0).abs() < 1e-12);
        assert_eq!(Preconditioning::Ve.at(2.0).noise, 0.0);
        let iddpm = Preconditioning::iddpm();
        assert_eq!(iddpm.at(1e-9).noise, -1.0);
        assert_eq!(iddpm.at(1e9).noise, 999.0);
    }

    /// Table 1 of Karras et al. (2022), worked out by hand: at σ = 2 (and σ_data = 0.5 for EDM), and at a second level.
    #[test]
    fn factors_are_those_of_the_table() {
        let close = |name: &str, c: Coefficients, expected: [f64; 4]| {
            let found = [c.skip, c.out, c.input, c.noise];
            let off = found.iter().zip(expected).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
            assert!(off < 1e-6, "{name}: {found:?}, {expected:?}");
        };
        let edm = Preconditioning::edm();
        close("edm", edm.at(2.0), [0.0588235, 0.4850713, 0.4850713, 0.1732868]);
        close("edm", edm.at(0.05), [0.9900990, 0.0497519, 1.9900744, -0.7489331]);
        close("ve", Preconditioning::Ve.at(6.0), [1.0, 6.0, 1.0, 1.0986123]);
        close("ve", Preconditioning::Ve.at(0.5), [1.0, 0.5, 1.0, -1.3862944]);
        // Of VP and improved DDPM the label is tested apart.
        for family in [Preconditioning::vp(), Preconditioning::iddpm()] {
            let (low, high) = (family.at(0.75), family.at(2.0));
            close("iddpm, vp", Coefficients { noise: 0.0, ..low }, [1.0, -0.75, 0.8, 0.0]);
            close("iddpm, vp", Coefficients { noise: 0.0, ..high }, [1.0, -2.0, 0.4472136, 0.0]);
        }
    }

    #[test]
    fn iddpm_takes_the_nearest_of_all_its_levels() {
        let (levels, iddpm) = (iddpm_levels(0.008, 0.001, 1000), Preconditioning::iddpm().prepared());
        assert!(levels.is_sorted_by(|a, b| a > b) && levels[1000] == 0.0);
        for i in 0..2000 {
            let sigma = (-8.0 + 0.008 * f64::from(i)).exp();
            let distance = |i: &usize| (levels[*i] - sigma).abs();
            let nearest = (0..=1000).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap();
            assert_eq!(iddpm.at(sigma).noise, 999.0 - nearest as f64, "{sigma}");
        }
    }

    #[test]
    fn constants_are_checked() {
        for text in
            ["kind = 'vp'\nbeta_d = -1.0", "kind = 'edm'\nsigma_data = nan", "kind = 'iddpm'\nsteps = 0"]
        {
            assert!(toml::from_str::<Preconditioning>(text).unwrap().check().is_err(), "{text}");
        }
        assert!(toml::from_str::<Preconditioning>("kind = 'vp'\nbeta = 1.0").is_err());
    }
}
