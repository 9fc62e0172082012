//! Vocabulary and annealing loop of Decoupled Annealing Posterior Sampling: schedules, priors, operators, likelihoods,
//! kernels, addressed randomness and events. No files, no printing, no networks.

mod anneal;
mod approx;
mod cosines;
mod covariance;
mod curvature;
mod denoiser;
mod dense;
mod discrepancy;
mod discrete;
mod error;
mod estimate;
mod event;
mod fingerprint;
mod frequency;
mod kernel;
mod likelihood;
pub mod linalg;
mod line;
mod method;
mod mirrored;
pub mod mixture;
mod noise;
mod noise_model;
mod nuisance;
mod ode;
mod operator;
mod poisson;
mod prior;
mod registers;
mod schedule;
mod space;
mod spread;
mod symmetric;
pub mod tensors;
mod update;
mod walk;

/// The tensor library, so that macros and dependants name one version.
pub use candle_core as candle;

pub use anneal::{Samples, anneal};
pub use approx::Approx;
pub use cosines::Cosines;
pub use covariance::{Covariance, Full, RowCovariance};
pub use denoiser::{
    Cotangent, CovarianceKind, Denoiser, DenoiserCovariance, DifferentiableDenoiser, ExactConditional,
    LocalDenoiser, Sigma,
};
pub use dense::linear_measurement;
pub use discrepancy::{Discrepancy, Statistic};
pub use discrete::{
    Categorical, Corruption, Enumerable, Mismatch, Rate, ReverseChain, Reversed, TokenEstimate, Tokens,
    map_tokens,
};
pub use error::{Error, Result, suggestion, with_suggestion};
pub use estimate::{BandSpread, Center, Continuous, Estimate, ScoreAt, Spread};
pub use event::{Cost, Event, Observer, State};
pub use fingerprint::checksum;
pub use frequency::{Frequency, LocalFactor};
pub use kernel::{ChainInfo, Conditional, Kernel};
pub use likelihood::{Beta, Gaussian, Likelihood, LocalLikelihood, Smooth};
pub use method::{Method, MethodInfo, Model, Need, Problem, shrink_factor};
pub use mirrored::MirroredWaves;
pub use noise::{Address, Noise, Purpose, Row, fill_normal, open01};
pub use noise_model::{NOISE_MODELS, NoiseModel, NoiseModelInfo};
pub use nuisance::{Nuisance, UnknownNoise};
pub use ode::{Ode, OdeEnd, OdeOrder, OdeSteps};
pub use operator::{Differentiable, Linear, Local, Magnitudes, Operator, Piece, Pixelwise, Shown, Spectral};
pub use poisson::{CountRate, Poisson};
pub use prior::{Estimated, Prior};
use registers::with_faer;
pub use schedule::{RHO, Schedule, ScheduleRule, Step, poly_grid};
pub use space::{Kind, Metrics, Scale, Space};
pub use spread::{Bands, Spectrum, SpreadTable};
pub use update::{update, update_dot};
pub use walk::{Level, Walk};
