//! Methods: DAPS and every baseline solve a task through one trait.

use std::sync::Arc;

use crate::{
    Categorical, Denoiser, Error, Likelihood, LocalLikelihood, Noise, Observer, Result, Samples, Schedule,
    Space, State, Walk,
};

/// A prior: over continuous samples or over tokens.
#[derive(Clone)]
pub enum Model {
    /// D(x, σ) = E[x0 | x_t].
    Denoiser(Arc<dyn Denoiser>),
    /// p(x0_i | x_t) of tokens.
    Tokens(Arc<dyn Categorical>),
}

impl Model {
    /// What its samples are.
    #[must_use]
    pub fn space(&self) -> Space {
        match self {
            Self::Denoiser(model) => model.space(),
            Self::Tokens(model) => model.space(),
        }
    }

    /// Shape of one sample.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Denoiser(model) => model.shape(),
            Self::Tokens(model) => model.shape(),
        }
    }
}

/// A problem: a prior and a likelihood whose rows are the chains to draw.
#[derive(Clone)]
pub struct Problem {
    /// The prior.
    pub model: Model,
    /// The measurement.
    pub likelihood: Arc<dyn Likelihood>,
}

impl Problem {
    /// A task with a prior over continuous samples.
    pub fn new(model: Arc<dyn Denoiser>, likelihood: Arc<dyn Likelihood>) -> Result<Self> {
        Self::of(Model::Denoiser(model), likelihood)
    }

    /// A task with a prior over tokens.
    pub fn discrete(model: Arc<dyn Categorical>, likelihood: Arc<dyn Likelihood>) -> Result<Self> {
        let symbols = model.corruption().symbols();
        match likelihood.as_local().and_then(LocalLikelihood::symbols) {
            Some(known) if known != symbols => {
                let what = format!("alphabet of the prior, as seen by {}", likelihood.name());
                Err(Error::invalid(what, format!("{known} symbols"), symbols))
            }
            _ => Self::of(Model::Tokens(model), likelihood),
        }
    }

    /// Checks that prior and likelihood speak of the same thing.
    pub fn of(model: Model, likelihood: Arc<dyn Likelihood>) -> Result<Self> {
        let space = model.space();
        let kind = likelihood.measured_by().and_then(|operator| operator.domain()).unwrap_or(space.kind());
        let measured = Space::new(likelihood.input_shape(), kind);
        measured.check(&format!("the prior's samples, as seen by {}", likelihood.name()), &space)?;
        Ok(Self { model, likelihood })
    }

    /// The prior over continuous samples that `who` needs.
    pub fn denoiser(&self, who: &str) -> Result<&Arc<dyn Denoiser>> {
        match &self.model {
            Model::Denoiser(model) => Ok(model),
            Model::Tokens(_) => Err(Error::missing(who, "a denoiser", "a prior over tokens")),
        }
    }

    /// The prior over tokens that `who` needs.
    pub fn tokens(&self, who: &str) -> Result<&Arc<dyn Categorical>> {
        match &self.model {
            Model::Tokens(model) => Ok(model),
            Model::Denoiser(_) => Err(Error::missing(who, "an alphabet", "a prior over continuous samples")),
        }
    }
}

/// A power that a method asks of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// ∇ log p(y | x).
    SmoothLikelihood,
    /// Gaussian noise with a linear operator.
    LinearOperator,
    /// Gaussian noise with a fast singular value decomposition.
    SpectralOperator,
    /// Gaussian noise with an operator that conditions in closed form: linear or pixelwise.
    ConjugateOperator,
    /// Vector-Jacobian products of the denoiser.
    DifferentiableDenoiser,
    /// Fourier magnitudes, onto which a plane can be projected.
    FourierMagnitudes,
    /// A measurement that is the image made smaller by a whole factor.
    SmallerImage,
    /// Samples of shape `[channels, height, width]`.
    Images,
    /// A prior over tokens; methods that do not ask for it work on continuous samples.
    Tokens,
}

/// By which whole factor the measured image is smaller, with sides rounded up, where the measurement is an image of as many channels.
#[must_use]
pub fn shrink_factor(input: &[usize], output: &[usize]) -> Option<usize> {
    let (&[c, h, w], &[oc, oh, ow]) =
        (<&[usize; 3]>::try_from(input).ok()?, <&[usize; 3]>::try_from(output).ok()?);
    // The smallest factor that makes both sides small enough; where several make the same sides, nothing tells them apart.
    let least = |side: usize, of: usize| (of > 0).then(|| side.div_ceil(of));
    let factor = least(h, oh)?.max(least(w, ow)?);
    let fits = factor > 1 && c == oc && (h.div_ceil(factor), w.div_ceil(factor)) == (oh, ow);
    fits.then_some(factor)
}

impl Need {
    /// Whether it is a power of the Gaussian noise model.
    fn is_gaussian(self) -> bool {
        use Need::{ConjugateOperator, FourierMagnitudes, LinearOperator, SmallerImage, SpectralOperator};
        matches!(
            self,
            LinearOperator | SpectralOperator | ConjugateOperator | FourierMagnitudes | SmallerImage
        )
    }

    /// Whether a task has it.
    #[must_use]
    pub fn met_by(self, task: &Problem) -> bool {
        let gaussian = task.likelihood.as_gaussian();
        match self {
            Self::SmoothLikelihood => task.likelihood.as_smooth().is_some(),
            Self::LinearOperator => gaussian.is_some_and(|g| g.operator().as_linear().is_some()),
            Self::SpectralOperator => gaussian.is_some_and(|g| g.operator().as_spectral().is_some()),
            Self::ConjugateOperator => gaussian
                .is_some_and(|g| g.operator().as_linear().is_some() || g.operator().as_pixelwise().is_some()),
            Self::DifferentiableDenoiser => {
                matches!(&task.model, Model::Denoiser(model) if model.as_differentiable().is_some())
            }
            Self::FourierMagnitudes => gaussian.is_some_and(|g| g.operator().as_magnitudes().is_some()),
            Self::SmallerImage => gaussian.is_some_and(|g| {
                shrink_factor(g.operator().input_shape(), g.operator().output_shape()).is_some()
            }),
            Self::Images => task.model.shape().len() == 3,
            Self::Tokens => matches!(task.model, Model::Tokens(_)),
        }
    }

    /// The power in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::SmoothLikelihood => "a differentiable likelihood",
            Self::LinearOperator => "a linear operator",
            Self::SpectralOperator => "a singular value decomposition",
            Self::ConjugateOperator => "a linear or pixelwise operator",
            Self::DifferentiableDenoiser => "a differentiable prior",
            Self::FourierMagnitudes => "Fourier magnitudes",
            Self::SmallerImage => "a measured image that is smaller by a whole factor",
            Self::Images => "samples with channels, height and width",
            Self::Tokens => "an alphabet",
        }
    }
}

/// What a method is.
#[derive(Debug)]
pub struct MethodInfo {
    /// Name in the registry.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The paper it comes from.
    pub paper: &'static str,
}

/// An algorithm that draws samples for a task.
pub trait Method: Send + Sync {
    /// Name, summary, paper.
    fn info(&self) -> &'static MethodInfo;

    /// A short text of what defines it: a run in a directory resumes only where it is the same.
    fn fingerprint(&self) -> Option<String> {
        None
    }

    /// The powers it needs, as configured.
    fn needs(&self) -> Vec<Need>;

    /// Whether it draws the unknown parameters of a likelihood along with x.
    fn draws_parameters(&self) -> bool {
        false
    }

    /// The levels that it walks through.
    fn schedule(&self) -> Result<Schedule>;

    /// Draws one sample per row of the walk's noise; task and settings are checked.
    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples>;

    /// Refuses settings that fit no task.
    fn check_settings(&self) -> Result<()> {
        self.schedule().map(drop)
    }

    /// How many levels there are, for progress bars and saved states.
    fn levels(&self) -> usize {
        self.schedule().map_or(0, |s| s.len())
    }

    /// Draws one sample per row of `noise`, from the start or from a state of an interrupted run.
    fn sample(
        &self,
        task: &Problem,
        noise: &Noise,
        from: Option<State>,
        observer: &mut dyn Observer,
    ) -> Result<Samples> {
        self.check(task)?;
        self.check_settings()?;
        self.run(task, Walk { schedule: &self.schedule()?, noise, from, observer })
    }

    /// Refuses a task that it cannot work on, in one sentence, before any work.
    fn check(&self, task: &Problem) -> Result<()> {
        self.check_needs(task)
    }

    /// Refuses a task that lacks a needed power.
    fn check_needs(&self, task: &Problem) -> Result<()> {
        let (needs, name) = (self.needs(), self.info().name);
        if needs.contains(&Need::Tokens) {
            task.tokens(name)?;
        } else {
            task.denoiser(name)?;
        }
        if task.likelihood.as_nuisance().is_some() && !self.draws_parameters() {
            return Err(Error::missing(name, "a known noise level", task.likelihood.name()));
        }
        for need in needs {
            if !need.met_by(task) {
                // Of noise that is not Gaussian, the operator is not what is wrong.
                if need.is_gaussian() && task.likelihood.as_gaussian().is_none() {
                    return Err(Error::missing(name, "Gaussian measurement noise", "this measurement"));
                }
                let whom = match need {
                    Need::DifferentiableDenoiser | Need::Images => "this prior",
                    _ => task.likelihood.name(),
                };
                return Err(Error::missing(name, need.words(), whom));
            }
        }
        Ok(())
    }
}
