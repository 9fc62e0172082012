//! The tasks of the paper's table: which operator each is, and what a run needs to know beyond it.
//!
//! The operators' own defaults hold the settings: those of the paper at 256x256, scaled with the side (at 64x64: super-resolution
//! 4x, a hidden box of 32x32, 70 % hidden pixels, Gaussian blur 15x15 of deviation 1.5, motion blur 15x15 of intensity 0.5, phase
//! retrieval oversampled by 2, HDR 2, nonlinear blur 15x15). The measurement's noise is 0.05 throughout.

/// A task by name.
#[derive(Debug)]
pub struct TaskInfo {
    /// Its name, which is its operator's.
    pub name: &'static str,
    /// What is asked.
    pub summary: &'static str,
}

/// Standard deviation of the measurement's noise.
pub const NOISE: f64 = 0.05;

/// Chains per measurement where nothing else is asked for.
pub const SAMPLES: usize = 4;

const fn task(name: &'static str, summary: &'static str) -> TaskInfo {
    TaskInfo { name, summary }
}

impl TaskInfo {
    /// Its name for people, which is its operator's.
    #[must_use]
    pub fn title(&self) -> &'static str {
        daps_operators::entry(self.name).map_or(self.name, |entry| entry.title)
    }
}

/// The eight tasks, in the order of the paper's table.
pub const TASKS: &[TaskInfo] = &[
    task("super_resolution", "a sharp image from one with a quarter of its side"),
    task("inpaint_box", "the content of a hidden square of half the side"),
    task("inpaint_random", "the 70 % of the pixels that are missing"),
    task("gaussian_blur", "a sharp image from one that is out of focus"),
    task("motion_blur", "a sharp image from one blurred by camera shake"),
    task("phase_retrieval", "an image from the magnitudes of its Fourier transform"),
    task("nonlinear_blur", "a sharp image from one blurred by camera shake before a tone curve"),
    task("hdr", "the clipped values of an overexposed image"),
];

/// The tasks over binary images, in the order of the paper's table; AND is ours.
pub const DISCRETE: &[TaskInfo] = &[
    task("inpaint_random", "the half of the pixels that are missing"),
    task("xor", "a binary image, given which of its pixel pairs differ"),
    task("and", "a binary image, given which of its pixel pairs are both light"),
];

/// Every task by name: those on pictures, then those on binary pictures alone.
pub fn all() -> impl Iterator<Item = &'static TaskInfo> {
    let new = |t: &&TaskInfo| TASKS.iter().all(|known| known.name != t.name);
    TASKS.iter().chain(DISCRETE.iter().filter(new))
}

/// The method for which nothing is said.
#[must_use]
pub fn default_method(discrete: bool) -> &'static str {
    if discrete { "discrete_daps" } else { "daps" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_core::NoiseModel;

    #[test]
    fn every_task_is_an_operator_with_defaults() {
        assert!(all().all(|t| daps_operators::entry(t.name).is_ok()));
        for task in TASKS {
            let entry = daps_operators::entry(task.name).unwrap();
            assert!(!(entry.defaults)(&[3, 64, 64]).is_empty(), "{}", task.name);
            assert!(daps_methods::TASKS.iter().any(|t| t.task == task.name), "{} has no settings", task.name);
        }
        assert_eq!(TASKS.len(), 8);
    }

    /// Our presets draw exactly where the operator is linear, whatever its name.
    #[test]
    fn our_presets_draw_exactly_where_the_operator_is_linear() {
        for entry in daps_operators::registry::OPERATORS {
            let linear = entry.small().unwrap().as_linear().is_some();
            let facts = crate::fit::facts(entry.name, &NoiseModel::Level(NOISE)).unwrap();
            let daps = daps_methods::Preset::Fast.settings_by(&facts, None, None).unwrap();
            assert_eq!(
                matches!(daps.kernel, daps_methods::kernel::KernelConfig::Exact(_)),
                linear,
                "{}",
                entry.name
            );
        }
    }
}
