//! The peak memory of a run does not grow with the number of levels. Alone in its process: it reads the process's peak.

use std::sync::Arc;

use daps_core::candle::{DType, Device, Tensor};
use daps_core::{
    Center, Denoiser, Estimate, Gaussian, Method, Noise, Problem, RHO, Result, ScheduleRule, Sigma, Spread,
};
use daps_methods::Daps;
use daps_methods::kernel::{Exact, KernelConfig};
use daps_operators::{Inpainting, random_mask};

/// N(0, 1) in every pixel.
struct Unit;

impl Denoiser for Unit {
    fn shape(&self) -> &[usize] {
        &[3, 256, 256]
    }
    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        Ok((x / (1.0 + sigma.row(0).powi(2)))?)
    }
}

/// The process's peak resident memory in MiB.
fn peak() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}

#[test]
fn a_run_of_many_levels_needs_no_more_memory_than_a_short_one() {
    let Some(_) = peak() else {
        eprintln!("no /proc/self/status here: peak memory is not checked");
        return;
    };
    let operator = Inpainting::new(&[3, 256, 256], &random_mask(256, 256, 0.7, 0).unwrap()).unwrap();
    let y = Tensor::zeros((4, 3, 256, 256), DType::F32, &Device::Cpu).unwrap();
    let likelihood = Gaussian::new(Arc::new(operator), y, 0.05).unwrap();
    let task = Problem::new(Arc::new(Unit), Arc::new(likelihood)).unwrap();
    let run = |levels| {
        let daps = Daps {
            beta: None,
            schedule: ScheduleRule::Poly { levels, max: 100.0, min: 0.1, rho: RHO },
            estimate: Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Sigma },
            kernel: KernelConfig::Exact(Exact::default()),
        };
        daps.sample(&task, &Noise::chains(0, 4), None, &mut ()).unwrap();
        peak().unwrap_or(0.0)
    };
    let short = run(5);
    let long = run(60);
    // A state is 3 MiB; keeping one per level would add 165 MiB.
    assert!(long - short < 12.0, "{short} MiB after 5 levels, {long} MiB after 60");
}
