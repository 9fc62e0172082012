//! PnP-DM: split Gibbs sampling with a coupling ρ that falls geometrically to a floor, Langevin steps where A is nonlinear.
//!
//! Paper: Wu, Sun, Chen, Zhang, Yue, Bouman, "Principled Probabilistic Imaging Using Diffusion Models as Plug-and-Play
//! Priors", NeurIPS 2024, Algorithm 1: z ~ p(y | z) N(z; x, ρ_k²), then x ~ p(x) N(x; z, ρ_k²) by the reverse SDE from z at
//! level ρ_k, with ρ_k = max(ρ_0 αᵏ, ρ_min). The last x is the sample.
//!
//! Defaults: 100 iterations, ρ_0 = 10, α = 0.9, ρ_min = 0.3 (the released values for linear tasks; 0.1 for phase retrieval),
//! 100 points from 80 to 0.002 for the SDE. Deviations: the SDE starts at ρ_k itself and takes ancestral steps, where the
//! released code starts at the next grid point below and takes Euler–Maruyama steps; Langevin steps follow the curvature, where it
//! has 1e-4 for all; HDR is drawn exactly, pixel by pixel; and x starts at zero, in phase retrieval too, where it starts at noise.

use daps_core::{Method, MethodInfo, Need, Problem, Result, Samples, Schedule, Walk};
use serde::{Deserialize, Serialize};

use crate::checks::{check_positive, check_range, check_some};
use crate::kernel::{KernelConfig, Langevin, StepSize};
use crate::{Reverse, split};

/// Settings of PnP-DM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PnpDm {
    /// Iterations.
    pub iterations: usize,
    /// ρ_0.
    pub rho: f64,
    /// α.
    pub decay: f64,
    /// ρ_min.
    pub rho_min: f64,
    /// The reverse diffusion.
    pub reverse: Reverse,
    /// How z is drawn where the operator is neither linear nor pixelwise.
    pub nonlinear: KernelConfig,
}

impl Default for PnpDm {
    fn default() -> Self {
        let step_size = StepSize::Curvature { factor: 0.5 };
        Self {
            iterations: 100,
            rho: 10.0,
            decay: 0.9,
            rho_min: 0.3,
            reverse: Reverse::default(),
            nonlinear: KernelConfig::Langevin(Langevin { steps: 100, step_size }),
        }
    }
}

static INFO: MethodInfo = MethodInfo {
    name: "pnp_dm",
    summary: "split Gibbs sampling: a draw given the measurement, a reverse diffusion, a coupling that falls to a floor",
    paper: "Wu et al., Principled Probabilistic Imaging Using Diffusion Models as Plug-and-Play Priors, NeurIPS 2024",
};

impl Method for PnpDm {
    fn info(&self) -> &'static MethodInfo {
        &INFO
    }

    fn needs(&self) -> Vec<Need> {
        vec![Need::SmoothLikelihood]
    }

    fn schedule(&self) -> Result<Schedule> {
        split::decaying(self.iterations, self.rho, self.decay, self.rho_min)
    }

    fn check_settings(&self) -> Result<()> {
        check_positive("pnp_dm.rho", self.rho)?;
        check_positive("pnp_dm.rho_min", self.rho_min)?;
        check_range("pnp_dm.decay", self.decay, 0.0, 1.0)?;
        self.reverse.check("pnp_dm")?;
        self.nonlinear.build()?;
        check_some("pnp_dm.iterations", self.iterations)
    }

    fn run(&self, task: &Problem, walk: Walk) -> Result<Samples> {
        split::run(&self.reverse, &self.nonlinear, task, walk)
    }
}
