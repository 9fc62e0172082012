//! Whole runs of the official sampler, replayed with their recorded noise (`tests/golden/trajectory_*.safetensors`).

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use daps_core::tensors::to_f64;
use daps_core::{
    Center, Continuous, Estimate, Event, Gaussian, Noise, Ode, OdeEnd, OdeOrder, OdeSteps, Operator, RHO,
    Schedule, ScheduleRule, ScoreAt, Spread, State, Walk, anneal,
};
use daps_methods::kernel::{DecayBy, Hmc, KernelConfig, Langevin, StepSize};
use daps_operators::{Blur, BlurKernel, Border, Hdr, PhaseRetrieval};
use daps_priors::NetworkConfig;
use daps_priors::network::{AdmConfig, Architecture, NetworkPrior, Preconditioning};

const TOLERANCE: f64 = 1e-3;
const SHAPE: [usize; 3] = [3, 32, 32];

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

fn prior() -> NetworkPrior {
    let adm = AdmConfig {
        image_size: 32,
        model_channels: 32,
        channel_mult: vec![1, 2],
        num_res_blocks: 1,
        attention_resolutions: vec![16],
        num_head_channels: Some(32),
        ..AdmConfig::ffhq256()
    };
    let config = NetworkConfig {
        network: Architecture::Adm(adm),
        preconditioning: Preconditioning::vp(),
        patch: 1,
        space: None,
    };
    NetworkPrior::load(&golden("adm_tiny.weights.safetensors"), Some(&config)).unwrap()
}

fn difference(ours: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(ours.dims(), expected.dims());
    let (a, b) = (to_f64(ours).unwrap(), to_f64(expected).unwrap());
    let scale = b.iter().fold(0f64, |m, v| m.max(v.abs()));
    a.iter().zip(&b).fold(0f64, |m, (a, b)| m.max((a - b).abs())) / scale
}

/// The official step: η0 falling with the level's index over one more level than there are.
fn decay(eta0: f64) -> StepSize {
    StepSize::Decay { eta0, delta: 0.01, by: DecayBy::IndexPlusOne, cut: None }
}

type Recorded = HashMap<String, Tensor>;

fn replay(
    name: &str,
    operator: impl FnOnce(&Recorded) -> Arc<dyn Operator>,
    kernel: KernelConfig,
    score: bool,
) {
    let run = candle_core::safetensors::load(golden(&format!("trajectory_{name}.safetensors")), &Device::Cpu)
        .unwrap();
    let schedule =
        Schedule::new(&ScheduleRule::PolyCut { levels: 6, max: 100.0, min: 0.1, rho: RHO }).unwrap();
    let ode =
        Ode { steps: OdeSteps::Fixed(3), min: 0.01, rho: RHO, end: OdeEnd::Min, order: OdeOrder::Euler };
    let estimate = match score {
        true => Estimate::Score { start: Center::Ode(ode), at: ScoreAt::State { sigma: 0.01 } },
        false => Estimate::Gaussian { center: Center::Ode(ode), spread: Spread::Sigma },
    };
    let prior = Continuous::new(Arc::new(prior()), estimate, schedule.len()).unwrap();
    // The official gradient misses the ½ of the likelihood.
    let beta = 0.01 / std::f64::consts::SQRT_2;
    let likelihood = Gaussian::new(operator(&run), run["y"].clone(), beta).unwrap();
    let mut draws: Vec<&String> = run.keys().filter(|k| k.starts_with("noise.")).collect();
    draws.sort();
    let noise = Noise::scripted(2, draws.into_iter().map(|k| run[k].clone()));
    let mut worst = 0f64;
    let mut observer = |event: &Event| {
        let Event::Level { step, x0_hat, x0_y, state, .. } = event else { return ControlFlow::Continue(()) };
        let i = step.index;
        for (what, ours) in [("x0hat", *x0_hat), ("x0y", *x0_y), ("xt", &state.x_t)] {
            let d = difference(ours, &run[&format!("{what}.{i:03}")]);
            println!("{name} level {i} {what}: {d:.2e}");
            worst = worst.max(d);
        }
        ControlFlow::Continue(())
    };
    let start = State::start(run["x_start"].to_dtype(DType::F32).unwrap());
    let kernel = kernel.build().unwrap();
    let walk = Walk { schedule: &schedule, noise: &noise, from: Some(start), observer: &mut observer };
    let samples = anneal(&prior, &likelihood, &*kernel, walk).unwrap();
    worst = worst.max(difference(&samples.x, &run["final"]));
    assert!(worst < TOLERANCE, "{name}: {worst:.2e}");
}

#[test]
fn langevin_on_a_blur() {
    let operator = |run: &Recorded| -> Arc<dyn Operator> {
        let kernel = BlurKernel::new(&to_f64(&run["kernel"]).unwrap(), 9, 9).unwrap();
        Arc::new(Blur::new(&SHAPE, &[kernel], Border::Reflect).unwrap())
    };
    replay(
        "langevin_blur",
        operator,
        KernelConfig::Langevin(Langevin { steps: 5, step_size: decay(1e-4) }),
        false,
    );
}

#[test]
fn hmc_on_phase_retrieval() {
    let operator =
        |_: &Recorded| -> Arc<dyn Operator> { Arc::new(PhaseRetrieval::new(&SHAPE, 2.0).unwrap()) };
    let hmc = Hmc { steps: 5, step_size: decay(1e-5), momentum: 0.73 };
    replay("hmc_phase", operator, KernelConfig::Hmc(hmc), false);
}

#[test]
fn diffusion_score_on_high_dynamic_range() {
    let operator = |_: &Recorded| -> Arc<dyn Operator> { Arc::new(Hdr::new(&SHAPE, 2.0).unwrap()) };
    replay(
        "score_hdr",
        operator,
        KernelConfig::Langevin(Langevin { steps: 5, step_size: decay(2e-5) }),
        true,
    );
}
