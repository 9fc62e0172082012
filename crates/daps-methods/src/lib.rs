//! DAPS as a method, its kernels and its rivals: one small file each, and the registries that list them.

mod daps;
mod dps;
pub mod kernel;
mod preset;
pub mod registry;

pub use daps::Daps;
pub use dps::{Dps, Dynamics, Guidance};
pub use preset::{BUDGETS, Budget, PRESETS, Preset, PresetInfo, TASKS, TaskSettings};
