//! The settings that the paper and its code tuned, the operators that they hold for, and what presets ask of a measurement.

use daps_core::{Error, Likelihood, Result};

/// The paper's budgets where the operator is linear, and where it is not.
pub(crate) const LINEAR_BUDGET: &str = "1k";
pub(crate) const NONLINEAR_BUDGET: &str = "4k";

/// The tuned settings of one task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskSettings {
    /// The operator that they were tuned for.
    pub task: &'static str,
    /// Operators that are so much like it that they take the same.
    pub also: &'static [&'static str],
    /// The paper's budget.
    pub budget: &'static str,
    /// Langevin η0; N = 100 and δ = 0.01 throughout.
    pub langevin_eta0: f64,
    /// Langevin's N and η0 in the code of 2024 and 2025, where they are others.
    pub code: Option<(usize, f64)>,
    /// HMC: N, η0, δ, μ.
    pub hmc: (usize, f64, f64, f64),
}

/// The paper's table of settings; HMC's come from the official configuration files. They hold for these operators under Gaussian
/// noise; any other measurement gets steps from its curvature.
pub const TASKS: &[TaskSettings] = &[
    TaskSettings {
        task: "super_resolution",
        also: &[],
        budget: LINEAR_BUDGET,
        langevin_eta0: 1e-4,
        code: None,
        hmc: (12, 1.04e-4, 0.012, 0.90),
    },
    TaskSettings {
        task: "inpaint_box",
        also: &[],
        budget: LINEAR_BUDGET,
        langevin_eta0: 5e-5,
        code: None,
        hmc: (84, 1.15e-5, 0.014, 0.003),
    },
    TaskSettings {
        task: "inpaint_random",
        also: &["inpaint"],
        budget: LINEAR_BUDGET,
        langevin_eta0: 1e-4,
        code: None,
        hmc: (11, 3.56e-5, 0.015, 0.80),
    },
    TaskSettings {
        task: "gaussian_blur",
        also: &[],
        budget: LINEAR_BUDGET,
        langevin_eta0: 1e-4,
        code: None,
        hmc: (82, 4.04e-5, 0.011, 0.10),
    },
    TaskSettings {
        task: "motion_blur",
        also: &["blur", "mri"],
        budget: LINEAR_BUDGET,
        langevin_eta0: 5e-5,
        code: None,
        hmc: (96, 3.69e-5, 0.010, 0.11),
    },
    TaskSettings {
        task: "phase_retrieval",
        also: &[],
        budget: NONLINEAR_BUDGET,
        langevin_eta0: 5e-5,
        code: None,
        hmc: (62, 9.75e-6, 0.019, 0.73),
    },
    TaskSettings {
        task: "nonlinear_blur",
        also: &[],
        budget: NONLINEAR_BUDGET,
        langevin_eta0: 5e-5,
        code: Some((200, 1e-5)),
        hmc: (85, 1.2e-5, 0.012, 0.46),
    },
    TaskSettings {
        task: "hdr",
        also: &[],
        budget: NONLINEAR_BUDGET,
        langevin_eta0: 2e-5,
        code: None,
        hmc: (100, 2.18e-5, 0.013, 0.23),
    },
];

impl TaskSettings {
    /// The settings that hold for an operator, where some do.
    #[must_use]
    pub fn of(operator: &str) -> Option<&'static Self> {
        TASKS.iter().find(|t| t.task == operator || t.also.contains(&operator))
    }
}

/// What presets ask of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// The paper's settings, where they hold.
    pub tuned: Option<&'static TaskSettings>,
    /// Whether the noise is Gaussian, so that DAPS can believe in another level of it.
    pub is_gaussian: bool,
    /// Whether the operator is linear besides, so that a Gaussian of any covariance is conditioned in closed form.
    pub is_linear: bool,
    /// Whether there is a gradient, from which a step can follow.
    pub is_smooth: bool,
}

impl Facts {
    /// Asks a likelihood.
    #[must_use]
    pub fn of(likelihood: &dyn Likelihood) -> Self {
        let gaussian = likelihood.as_gaussian();
        Self {
            tuned: gaussian.and_then(|g| TaskSettings::of(g.operator().name())),
            is_gaussian: gaussian.is_some(),
            is_linear: gaussian.is_some_and(|g| g.operator().as_linear().is_some()),
            is_smooth: likelihood.as_smooth().is_some(),
        }
    }

    /// What holds for a row of the paper's table.
    pub fn of_task(task: &str) -> Result<Self> {
        let known = || TASKS.iter().map(|t| t.task);
        let row = TaskSettings::of(task).ok_or_else(|| Error::unknown("task of the paper", task, known()))?;
        let is_linear = row.budget == LINEAR_BUDGET;
        Ok(Self { tuned: Some(row), is_gaussian: true, is_linear, is_smooth: true })
    }

    /// Measurements between which settings can differ, to find settings that fit none of them.
    pub(crate) fn kinds() -> [Self; 3] {
        let any = Self { tuned: None, is_gaussian: true, is_linear: true, is_smooth: true };
        [Self { tuned: TASKS.first(), ..any }, any, Self { is_linear: false, ..any }]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_which_operators_it_holds_for() {
        assert_eq!(TaskSettings::of("mri").map(|t| t.task), Some("motion_blur"));
        assert_eq!(TaskSettings::of("blur").map(|t| t.task), Some("motion_blur"));
        assert_eq!(TaskSettings::of("inpaint").map(|t| t.task), Some("inpaint_random"));
        assert_eq!(TaskSettings::of("dense"), None);
        assert!(Facts::of_task("dense").is_err());
    }
}
