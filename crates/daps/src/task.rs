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
    /// Its name for people.
    pub title: &'static str,
    /// What is asked.
    pub summary: &'static str,
}

/// Standard deviation of the measurement's noise.
pub const NOISE: f64 = 0.05;

/// Chains per measurement where nothing else is asked for.
pub const SAMPLES: usize = 4;

const fn task(name: &'static str, title: &'static str, summary: &'static str) -> TaskInfo {
    TaskInfo { name, title, summary }
}

/// The eight tasks, in the order of the paper's table.
pub const TASKS: &[TaskInfo] = &[
    task("super_resolution", "super-resolution", "a sharp picture from one of a quarter of its side"),
    task("inpaint_box", "inpainting, box", "what a hidden square of half the side held"),
    task("inpaint_random", "inpainting, random", "the 70 % of the pixels that are missing"),
    task("gaussian_blur", "Gaussian deblurring", "a picture that was out of focus"),
    task("motion_blur", "motion deblurring", "a picture that was shaken"),
    task("phase_retrieval", "phase retrieval", "a picture from the magnitudes of its Fourier transform"),
    task("nonlinear_blur", "nonlinear deblurring", "a picture that was shaken before a camera's tone curve"),
    task("hdr", "high dynamic range", "what an overexposed picture clipped"),
];

/// The tasks over binary images, in the order of the paper's table; AND is ours.
pub const DISCRETE: &[TaskInfo] = &[
    task("inpaint_random", "inpainting, random", "the half of the pixels that are missing"),
    task("xor", "XOR of pixel pairs", "a binary picture from which of its pixel pairs differ"),
    task("and", "AND of pixel pairs", "a binary picture from which of its pixel pairs are both light"),
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

/// The settings of an operator over binary images that are not its own defaults: half of the pixels are hidden.
#[must_use]
pub fn discrete_options(operator: &str) -> toml::Table {
    let hidden = (operator == "inpaint_random").then(|| ("fraction".to_owned(), toml::Value::from(0.5)));
    hidden.into_iter().collect()
}

/// What a task or another operator is called for people.
#[must_use]
pub fn title(operator: &str) -> &str {
    all().find(|t| t.name == operator).map_or(operator, |t| t.title)
}

/// Whether different pictures give the same measurement (a shift, a half turn), so that chains end in several places and one
/// of them has to be chosen.
#[must_use]
pub fn is_ambiguous(operator: &str) -> bool {
    operator == "phase_retrieval"
}

/// Whether a measurement can come as a picture; magnitudes and spectra cannot.
#[must_use]
pub fn is_measured_as_picture(operator: &str) -> bool {
    !matches!(operator, "phase_retrieval" | "mri" | "xor" | "and")
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Our presets know linear operators by name; the operators themselves must agree.
    #[test]
    fn our_presets_draw_exactly_where_the_operator_is_linear() {
        for entry in daps_operators::registry::OPERATORS {
            let linear = (entry.example)([3, 16, 16], 0).unwrap().operator.as_linear().is_some();
            let settings = "preset = 'fast'".parse().unwrap();
            let resolved = daps_methods::registry::resolve("daps", &settings, entry.name).unwrap();
            assert_eq!(resolved["kernel"]["kind"].as_str() == Some("exact"), linear, "{}", entry.name);
        }
    }
}
