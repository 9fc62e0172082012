//! The law of a DAPS run on a Gaussian prior with a linear operator, in closed form: a recursion of means and variances.
//!
//! Along a singular direction of A everything is linear and Gaussian: the ODE multiplies the deviation from the prior's
//! mean, the kernel pulls towards its fixed point and adds noise, renoising adds more. So a chain's final value in every
//! mode is normal, with a mean and a variance that follow level by level.

use daps::{Error, Result};
use daps_core::{Center, Estimate, Ode, OdeOrder, OdeSteps, Schedule, Spread, Step};
use daps_methods::Daps;
use daps_methods::kernel::{KernelConfig, Recursion, StepSize};

/// A prior N(mean, variance) of one mode, seen through one singular value.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    /// Prior mean.
    pub mean: f64,
    /// Prior variance.
    pub variance: f64,
    /// Singular value.
    pub singular: f64,
    /// The measurement's coordinate along the mode.
    pub y: f64,
    /// Largest singular value of all modes: step sizes follow it.
    pub largest: f64,
}

/// A normal law.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normal {
    /// Mean.
    pub mean: f64,
    /// Variance.
    pub variance: f64,
}

impl Normal {
    /// The 2-Wasserstein distance of two normal laws on the line.
    #[must_use]
    pub fn w2(&self, other: &Self) -> f64 {
        let spread = self.variance.sqrt() - other.variance.sqrt();
        (self.mean - other.mean).hypot(spread)
    }
}

impl Mode {
    /// The posterior with noise level β.
    #[must_use]
    pub fn posterior(&self, beta: f64) -> Normal {
        let precision = 1.0 / self.variance + (self.singular / beta).powi(2);
        let mean = (self.mean / self.variance + self.singular * self.y / (beta * beta)) / precision;
        Normal { mean, variance: 1.0 / precision }
    }

    /// E[x0 | x_t] - mean as a multiple of x_t - mean.
    fn shrink(&self, sigma: f64) -> f64 {
        self.variance / (self.variance + sigma * sigma)
    }

    /// The factor by which the ODE solver multiplies a deviation from the mean.
    fn flow(&self, ode: &Ode, step: &Step) -> f64 {
        let steps = match &ode.steps {
            OdeSteps::Fixed(n) => *n,
            OdeSteps::PerLevel(n) => n[step.index],
        };
        let slope = |sigma: f64| (1.0 - self.shrink(sigma)) / sigma;
        ode.grid(step.sigma, steps)
            .windows(2)
            .map(|w| {
                let h = w[1] - w[0];
                let euler = 1.0 + h * slope(w[0]);
                match ode.order {
                    OdeOrder::Heun if w[1] > 0.0 => 1.0 + 0.5 * h * (slope(w[0]) + slope(w[1]) * euler),
                    _ => euler,
                }
            })
            .product()
    }
}

/// A target of a kernel along one mode: N(center, r²) times the likelihood.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// r².
    pub spread: f64,
    /// Singular value.
    pub singular: f64,
    /// The measurement's coordinate.
    pub y: f64,
    /// β.
    pub beta: f64,
    /// Largest singular value of all modes.
    pub largest: f64,
}

/// x0|y = `gain` x̂0 + `shift` + `noise` z: what a kernel does to its start along a mode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Multiplier of x̂0.
    pub gain: f64,
    /// Constant.
    pub shift: f64,
    /// Standard deviation of what is added.
    pub noise: f64,
}

impl Target {
    fn curvature(&self) -> f64 {
        1.0 / self.spread + (self.singular / self.beta).powi(2)
    }

    fn stiffest(&self) -> f64 {
        1.0 / self.spread + (self.largest / self.beta).powi(2)
    }

    /// The law of a kernel that starts at x̂0; `None` for kernels whose law is not linear (Metropolis, MALA).
    #[must_use]
    pub fn kernel(&self, kernel: &KernelConfig, step: &Step) -> Option<Affine> {
        let eta = |size: &StepSize| size.value(step, self.stiffest());
        match kernel {
            KernelConfig::Langevin(k) => Some(self.langevin(eta(&k.step_size), k.steps)),
            KernelConfig::Replay(k) => Some(self.langevin(eta(&k.step_size), k.steps)),
            KernelConfig::Hmc(k) => Some(self.hmc(eta(&k.step_size), k.momentum, k.steps)),
            KernelConfig::Exact(_) => Some(self.conditional()),
            KernelConfig::Metropolis(_)
            | KernelConfig::Mala(_)
            | KernelConfig::Underdamped(_)
            | KernelConfig::Flips(_) => None,
        }
    }

    /// The conditional itself.
    #[must_use]
    pub fn conditional(&self) -> Affine {
        let h = self.curvature();
        Affine {
            gain: 1.0 / (self.spread * h),
            shift: self.singular * self.y / (self.beta.powi(2) * h),
            noise: h.powf(-0.5),
        }
    }

    fn langevin(&self, eta: f64, steps: usize) -> Affine {
        let recursion = Recursion::new(eta, self.curvature(), steps);
        let fixed = self.conditional();
        let rest = 1.0 - recursion.decay;
        Affine {
            gain: recursion.decay + rest * fixed.gain,
            shift: rest * fixed.shift,
            noise: recursion.spread,
        }
    }

    /// Position and velocity as an affine function of x̂0, with their 2x2 covariance given x̂0.
    fn hmc(&self, eta: f64, momentum: f64, steps: usize) -> Affine {
        let (h, root) = (self.curvature(), eta.sqrt());
        let pull = self.singular * self.y / self.beta.powi(2);
        // (value per unit of x̂0, constant) of position and velocity; the velocity starts as a unit normal.
        let (mut x, mut v) = ((1.0, 0.0), (0.0, 0.0));
        let (mut xx, mut xv, mut vv) = (0.0, 0.0, 1.0);
        for _ in 0..steps {
            v = (
                momentum * v.0 + root * (1.0 / self.spread - h * x.0),
                momentum * v.1 + root * (pull - h * x.1),
            );
            x = (x.0 + root * v.0, x.1 + root * v.1);
            // v' = μ v - √η h x + √(2(1-μ)) ε; x' = x + √η v'.
            let (a, b) = (momentum, -root * h);
            let new_vv = a * a * vv + 2.0 * a * b * xv + b * b * xx + 2.0 * (1.0 - momentum);
            let cross = a * xv + b * xx;
            xx += 2.0 * root * cross + eta * new_vv;
            xv = cross + root * new_vv;
            vv = new_vv;
        }
        Affine { gain: x.0, shift: x.1, noise: xx.sqrt() }
    }
}

/// The law of a whole run along a mode; `beta` is the measurement's own noise level.
pub fn run(daps: &Daps, mode: &Mode, beta: f64) -> Result<Normal> {
    let schedule = Schedule::new(&daps.schedule)?;
    let Estimate::Gaussian { center, spread } = &daps.estimate else {
        return Err(Error::Config("the law in closed form: expected a Gaussian estimate".into()));
    };
    let mut law = Normal { mean: 0.0, variance: schedule.start().powi(2) };
    for step in schedule.steps() {
        let g = match center {
            Center::Ode(ode) => mode.flow(ode, &step),
            Center::Tweedie => mode.shrink(step.sigma),
        };
        let spread = match spread {
            Spread::Sigma => step.sigma.powi(2),
            Spread::Table(table) => table.at(step.sigma).powi(2),
            Spread::Covariance(_) | Spread::Prior | Spread::Frequencies(_) | Spread::Bands(_) => {
                mode.shrink(step.sigma) * step.sigma.powi(2)
            }
        };
        let (singular, y, largest) = (mode.singular, mode.y, mode.largest);
        let target = Target { spread, singular, y, beta: daps.beta.unwrap_or(beta), largest };
        let Some(kernel) = target.kernel(&daps.kernel, &step) else {
            return Err(Error::Config(
                "the law in closed form: expected a kernel whose law is linear".into(),
            ));
        };
        let x0_hat = mode.mean + g * (law.mean - mode.mean);
        law.mean = kernel.gain * x0_hat + kernel.shift;
        law.variance = (kernel.gain * g).powi(2) * law.variance + kernel.noise.powi(2) + step.next.powi(2);
    }
    Ok(law)
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::{RHO, ScheduleRule, SpreadTable};
    use daps_methods::kernel::{Exact, Hmc, Langevin};

    const SCALAR: Mode = Mode { mean: 0.0, variance: 1.0, singular: 1.0, y: 1.0, largest: 1.0 };

    fn daps(levels: usize, estimate: Estimate) -> Daps {
        let schedule = ScheduleRule::Poly { levels, max: 1000.0, min: 1e-3, rho: RHO };
        Daps { beta: None, schedule, estimate, kernel: KernelConfig::Exact(Exact::default()) }
    }

    /// Prior N(0,1), y = x + n, β = 1, y = 1: the posterior has mean and variance ½, and what each estimate tends to.
    #[test]
    fn the_three_limits_of_the_scalar_example() {
        let ode = Ode { steps: OdeSteps::Fixed(200), ..Ode::paper(1) };
        let endpoint =
            Estimate::Gaussian { center: Center::Ode(Ode { min: 1e-5, ..ode }), spread: Spread::Sigma };
        let law = run(&daps(2000, endpoint), &SCALAR, 1.0).unwrap();
        assert!((law.mean - 2.0 / 3.0).abs() < 0.01 && (law.variance - 2.0 / 3.0).abs() < 0.01, "{law:?}");

        let tweedie = Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Sigma };
        let law = run(&daps(4000, tweedie), &SCALAR, 1.0).unwrap();
        assert!((law.mean - 0.5).abs() < 0.01 && (law.variance - 0.5).abs() < 0.01, "{law:?}");

        for levels in [1, 2, 10] {
            let schedule = Schedule::new(&daps(levels, Estimate::Exact).schedule).unwrap();
            let mut sigma: Vec<f64> = schedule.sigmas()[..levels].to_vec();
            sigma.reverse();
            let r = sigma.iter().map(|s| (s * s / (1.0 + s * s)).sqrt()).collect();
            let table = SpreadTable { sigma, r, data_std: 1.0, bands: None };
            let exact = Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Table(table) };
            let law = run(&daps(levels, exact), &SCALAR, 1.0).unwrap();
            // What is left is that x_T starts at N(0, σ²) instead of N(0, 1 + σ²).
            assert!((law.mean - 0.5).abs() < 1e-5 && (law.variance - 0.5).abs() < 1e-5, "{levels}: {law:?}");
        }
    }

    /// HMC without momentum is Langevin but for its first velocity, which is drawn and then forgotten.
    #[test]
    fn hmc_without_momentum_is_langevin() {
        let target = Target { spread: 0.09, singular: 0.7, y: 0.4, beta: 0.1, largest: 1.0 };
        let step = Step { index: 0, of: 4, start: 1.0, sigma: 0.3, next: 0.1 };
        let step_size = StepSize::decay(1e-3);
        let hmc = KernelConfig::Hmc(Hmc { steps: 30, step_size: step_size.clone(), momentum: 0.0 });
        let langevin = KernelConfig::Langevin(Langevin { steps: 30, step_size });
        let (a, b) = (target.kernel(&hmc, &step).unwrap(), target.kernel(&langevin, &step).unwrap());
        assert!(
            (a.gain - b.gain).abs() < 1e-12
                && (a.shift - b.shift).abs() < 1e-12
                && (a.noise - b.noise).abs() < 1e-12
        );
    }

    /// A long stable chain forgets its start.
    #[test]
    fn a_long_chain_of_small_steps_is_the_conditional() {
        let target = Target { spread: 0.09, singular: 0.7, y: 0.4, beta: 0.1, largest: 1.0 };
        let step = Step { index: 0, of: 4, start: 1.0, sigma: 0.3, next: 0.1 };
        let langevin =
            KernelConfig::Langevin(Langevin { steps: 2_000_000, step_size: StepSize::decay(1e-6) });
        let (a, b) = (target.kernel(&langevin, &step).unwrap(), target.conditional());
        assert!(
            (a.gain - b.gain).abs() < 1e-4
                && (a.shift - b.shift).abs() < 1e-4
                && (a.noise - b.noise).abs() < 1e-4
        );
    }
}
