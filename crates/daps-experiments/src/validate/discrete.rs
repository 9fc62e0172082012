//! Tokens against enumeration: binary images so small that their posterior is a table.
//!
//! With the conditional p(x0 | x_t) itself the loop must draw the posterior at any number of levels; with an approximation it is
//! off by what is printed: that is the approximation's price, and more levels lower it without making it vanish.

use std::ops::ControlFlow;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use daps::Result;
use daps::progress::Progress;
use daps_core::tensors::batched;
use daps_core::{
    Corruption, Method, Mismatch, Noise, Operator, Problem, Rate, ReverseChain, ScheduleRule, TokenEstimate,
};
use daps_methods::DiscreteDaps;
use daps_operators::{Gate, Inpainting, Pairs};
use daps_priors::Listed;
use serde::Serialize;

/// Side of the images; there are 2^9 of them.
const SIDE: usize = 3;
/// Noise of the measurement: a measured token is wrong with probability 1/6.
const BETA: f64 = 0.788;
/// Where the levels start, and where the last but one ends.
const RANGE: (f64, f64) = (20.0, 0.01);

/// How p(x0 | x_t) is approximated, by name.
pub const ESTIMATES: [(&str, TokenEstimate); 3] = [
    ("exact", TokenEstimate::Exact),
    ("marginals", TokenEstimate::Marginals),
    ("hamming", TokenEstimate::Hamming(ReverseChain { steps: 8, min: 0.02 })),
];
/// The measurements.
pub const TASKS: [&str; 3] = ["inpaint", "xor", "and"];

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Chains of every case.
    pub samples: usize,
    /// Numbers of levels.
    pub levels: Vec<usize>,
    /// Seed of everything that is random.
    pub seed: u64,
}

/// How far the chains of one case are from the posterior.
#[derive(Clone, Debug, Serialize)]
pub struct Score {
    /// The measurement.
    pub task: &'static str,
    /// The approximation of p(x0 | x_t).
    pub estimate: &'static str,
    /// Levels.
    pub levels: usize,
    /// Total-variation distance between the shares of the 512 images among the samples and their posterior.
    pub distance: f64,
    /// What as many exact draws have on average.
    pub chance: f64,
    /// What they exceed once in a thousand times at most (McDiarmid's inequality).
    pub bound: f64,
}

impl Score {
    /// Whether this is what the mathematics says: the exact conditional stays within chance.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.estimate != "exact" || self.distance <= self.bound
    }
}

/// Pixels like their neighbours, and light ones are rarer: several modes, no symmetry.
fn prior() -> Result<Listed> {
    let chain = Corruption::new(2, Rate::Uniform)?;
    Ok(Listed::all(chain, &[1, SIDE, SIDE], |x| {
        let same = |a: usize, b: usize| f64::from(u8::from(x[a] == x[b]));
        let across = (0..SIDE).flat_map(|i| (1..SIDE).map(move |j| (i * SIDE + j - 1, i * SIDE + j)));
        let down = (SIDE..SIDE * SIDE).map(|k| (k - SIDE, k));
        let light: f64 = x.iter().map(|v| f64::from(*v)).sum();
        (1.1 * across.chain(down).map(|(a, b)| same(a, b)).sum::<f64>() - 0.4 * light).exp()
    })?)
}

fn operator(task: &str) -> Result<Arc<dyn Operator>> {
    let (shape, n) = ([1, SIDE, SIDE], SIDE * SIDE);
    let pairs: Vec<[usize; 2]> = (0..n / 2).map(|k| [k, n - 1 - k]).collect();
    Ok(match task {
        "xor" => Arc::new(Pairs::new(Gate::Xor, &shape, &pairs)?),
        "and" => Arc::new(Pairs::new(Gate::And, &shape, &pairs)?),
        _ => {
            let mask: Vec<u8> = (0..n).map(|i| u8::from(i % 2 == 1)).collect();
            let mask = Tensor::from_vec(mask, (1, 1, SIDE, SIDE), &Device::Cpu)?;
            Arc::new(Inpainting::new(&shape, &mask)?)
        }
    })
}

/// Half of the measured tokens are light, more than the prior expects.
fn measurement(operator: &Arc<dyn Operator>, rows: usize) -> Result<Mismatch> {
    let outputs: usize = operator.output_shape().iter().product();
    let y: Vec<u8> = (0..rows * outputs).map(|k| (k % outputs / 2 % 2) as u8).collect();
    let y = Tensor::from_vec(y, batched(rows, operator.output_shape()), &Device::Cpu)?;
    Ok(Mismatch::new(operator.clone(), &y, BETA)?)
}

/// Runs every task, approximation and number of levels; fewer scores come back if it was asked to stop.
pub fn run(settings: &Settings, progress: &mut dyn Progress) -> Result<Vec<Score>> {
    let n = settings.samples;
    progress.begin("tokens", TASKS.len() * ESTIMATES.len() * settings.levels.len());
    let mut scores = Vec::new();
    for task in TASKS {
        let (prior, operator) = (Arc::new(prior()?), operator(task)?);
        let likelihood = Arc::new(measurement(&operator, n)?);
        let posterior = prior.posterior(&*likelihood, 0)?;
        let spread = |p: &f64| (2.0 * p * (1.0 - p) / (std::f64::consts::PI * n as f64)).sqrt();
        let chance = 0.5 * posterior.iter().map(spread).sum::<f64>();
        // One draw of n moves the distance by 1/n at most.
        let bound = chance + (1000f64.ln() / (2.0 * n as f64)).sqrt();
        let problem = Problem::discrete(prior, likelihood)?;
        for (estimate, kind) in ESTIMATES {
            for &levels in &settings.levels {
                if let ControlFlow::Break(()) = progress.step(&format!("{task}, {estimate}, {levels} levels"))
                {
                    return Ok(scores);
                }
                let schedule = match levels {
                    1 => ScheduleRule::Levels { sigmas: vec![RANGE.0, 0.0] },
                    _ => ScheduleRule::Geometric { levels, max: RANGE.0, min: RANGE.1 },
                };
                let method = DiscreteDaps { schedule, estimate: kind, ..DiscreteDaps::default() };
                let samples = method.sample(&problem, &Noise::chains(settings.seed, n), None, &mut ())?;
                let distance = distance(&samples.x, &posterior)?;
                scores.push(Score { task, estimate, levels, distance, chance, bound });
            }
        }
    }
    progress.end();
    Ok(scores)
}

/// Total variation between the shares of samples and a law; sample k has the binary digits of k, the first pixel lowest.
fn distance(x: &Tensor, law: &[f64]) -> Result<f64> {
    let rows = x.flatten_from(1)?.to_vec2::<u8>()?;
    let mut shares = vec![0.0; law.len()];
    for row in &rows {
        shares[row.iter().rev().fold(0, |k, t| 2 * k + usize::from(*t))] += 1.0 / rows.len() as f64;
    }
    Ok(0.5 * shares.iter().zip(law).map(|(a, b)| (a - b).abs()).sum::<f64>())
}
