//! Diffusion posterior sampling: the reverse diffusion, pulled at every step towards the measurement through D(x, σ).
//!
//! Paper: Chung, Kim, Mccann, Klasky, Ye, "Diffusion Posterior Sampling for General Noisy Inverse Problems", ICLR 2023,
//! Algorithm 1. With x in the EDM convention the ancestral step from σ to σ' is the bridge
//! N(x + (1 - σ'²/σ²)(D - x), σ'²(1 - σ'²/σ²)); the deterministic variant takes the Euler step of the probability-flow ODE.
//!
//! Guidance `norm` is the released code's: ζ ∇‖y - A(D)‖ in the VP coordinate u = x/√(1+σ²), so that in x the step carries the
//! factor √((1+σ²)(1+σ'²)). (Algorithm 1 has ζ_i ∇‖·‖² with ζ_i = ζ'/‖·‖, which is twice as much for the same number: its ζ' is
//! half of ζ here.) Guidance `likelihood` adds the gradient of log p(y | D(x, σ)) to the score with its true β, as
//! the DAPS paper's 2-D experiment does: times σ² - σ'² for the SDE and σ(σ - σ') for the ODE. The default ζ is 1; the released
//! configurations have 0.3 for super-resolution and all deblurrings and 0.5 for inpainting, and it is a free parameter. Deviations:
//! D is not clipped to [-1, 1], as the released code does it, and the ancestral noise has the bridge's variance where theirs is
//! the network's learned one.

use daps_core::candle::Tensor;
use daps_core::tensors::{combine, dot_rows};
use daps_core::{
    Error, Level, Likelihood, Method, MethodInfo, Need, Problem, Result, Samples, Schedule, ScheduleRule,
    Sigma, Smooth, State, Walk,
};
use serde::{Deserialize, Serialize};

use crate::checks::check_range;
use crate::reverse::bridge;
use crate::rivals::{differentiable, pure_noise, step_noise};

/// Settings of DPS.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dps {
    /// Noise levels.
    pub schedule: ScheduleRule,
    /// Stochastic (ancestral) or deterministic steps.
    pub dynamics: Dynamics,
    /// How the measurement pulls.
    pub guidance: Guidance,
}

/// How a step from one level to the next is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dynamics {
    /// Ancestral sampling of the reverse SDE.
    #[default]
    Sde,
    /// Euler steps of the probability-flow ODE.
    Ode,
}

/// The pull towards the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guidance {
    /// ζ ∇‖y - A(D)‖.
    Norm {
        /// ζ.
        zeta: f64,
    },
    /// The gradient of log p(y | D(x, σ)), times a scale.
    Likelihood {
        /// 1 for the true noise level.
        scale: f64,
    },
}

impl Default for Guidance {
    fn default() -> Self {
        Self::Norm { zeta: 1.0 }
    }
}

impl Default for Dps {
    /// The 1000 ancestral steps of DDPM with ζ = 1, as in the paper's FFHQ experiments. As many steps on a poly-7 grid gave
    /// 21.7 dB for 22.1 in super-resolution (4 faces): too few of them are at levels where the image takes shape.
    fn default() -> Self {
        let schedule = ScheduleRule::Ddpm { levels: 1000, first: 999, last: 0 };
        Self { schedule, dynamics: Dynamics::Sde, guidance: Guidance::default() }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "dps",
    summary: "reverse diffusion with a gradient step towards the measurement through the denoiser",
    paper: "Chung et al., Diffusion Posterior Sampling for General Noisy Inverse Problems, ICLR 2023",
};

impl Dps {
    /// The gradient that is pulled back through D: of log p(y | x0), or of -‖y - A(x0)‖.
    fn cotangent(&self, likelihood: &dyn Smooth, x0: &Tensor) -> Result<Tensor> {
        match self.guidance {
            Guidance::Likelihood { .. } => likelihood.gradient(x0),
            Guidance::Norm { .. } => {
                let gaussian = gaussian(likelihood)?;
                // -∇‖r‖ = -Jᵀ r / ‖r‖; at r = 0 there is nothing to pull towards.
                let inverse = |s: &f64| if *s > 0.0 { -1.0 / s.sqrt() } else { 0.0 };
                differentiable("dps", gaussian)?.vjp_of(x0, &mut |seen| {
                    let r = gaussian.residual_of(seen)?;
                    let scale: Vec<f64> = dot_rows(&r, &r)?.iter().map(inverse).collect();
                    combine(&[(&scale, &r)])
                })
            }
        }
    }

    /// What the pulled-back gradient is multiplied with on the way from σ to `next`.
    fn strength(&self, sigma: f64, next: f64) -> f64 {
        match (self.guidance, self.dynamics) {
            (Guidance::Norm { zeta }, _) => zeta * ((1.0 + sigma * sigma) * (1.0 + next * next)).sqrt(),
            (Guidance::Likelihood { scale }, Dynamics::Sde) => scale * (sigma * sigma - next * next),
            // dx/dσ = -σ (score): an Euler step from σ to `next` multiplies the score by σ(σ - next).
            (Guidance::Likelihood { scale }, Dynamics::Ode) => scale * sigma * (sigma - next),
        }
    }
}

fn gaussian(likelihood: &dyn Likelihood) -> Result<&daps_core::Gaussian> {
    likelihood.as_gaussian().ok_or_else(|| {
        Error::missing("dps with norm guidance", "Gaussian measurement noise", likelihood.name())
    })
}

impl Method for Dps {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::SmoothLikelihood, Need::DifferentiableDenoiser]
    }

    fn schedule(&self) -> Result<Schedule> {
        match self.dynamics {
            Dynamics::Sde => Schedule::falling("dps", &self.schedule),
            Dynamics::Ode => Schedule::new(&self.schedule),
        }
    }

    fn check_settings(&self) -> Result<()> {
        self.schedule()?;
        let (name, value) = match self.guidance {
            Guidance::Norm { zeta } => ("zeta", zeta),
            Guidance::Likelihood { scale } => ("scale", scale),
        };
        check_range(&format!("dps.{name}"), value, 0.0, f64::INFINITY)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        let (schedule, noise) = (walk.schedule, walk.noise);
        let denoiser = &**task.denoiser("dps")?;
        let (Some(model), Some(likelihood)) = (denoiser.as_differentiable(), task.likelihood.as_smooth())
        else {
            return Err(Error::missing("dps", "derivatives", "this task"));
        };
        let start = || Ok(State::start(pure_noise(denoiser, noise, schedule.start())?));
        walk.run(start, |state, step| {
            let x = &state.x_t;
            let pull = |x0: &Tensor| self.cotangent(likelihood, x0);
            let (denoised, gradient) = model.denoise_vjp(x, &Sigma::Same(step.sigma), &pull)?;
            let strength = self.strength(step.sigma, step.next);
            state.x_t = match self.dynamics {
                Dynamics::Sde => {
                    let z = step_noise(denoiser, noise, step)?;
                    let (keep, spread) = bridge(step.sigma, step.next);
                    combine(&[
                        (&[keep], x),
                        (&[1.0 - keep], &denoised),
                        (&[spread], &z),
                        (&[strength], &gradient),
                    ])?
                }
                Dynamics::Ode => {
                    let ratio = step.next / step.sigma;
                    combine(&[(&[ratio], x), (&[1.0 - ratio], &denoised), (&[strength], &gradient)])?
                }
            };
            Ok(Level::new(denoised.clone(), denoised, 1, 2))
        })
    }
}
