//! A problem of one's own from end to end: a nonlinear operator, a likelihood with outliers and a prior in closed form, run with a
//! stop, a resume and a report. `cargo run --release -p own-problem` writes `own-problem/report.html`.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use daps::core::candle::{DType, Device, Tensor};
use daps::core::tensors::{check_rows, from_f64, to_f64};
use daps::core::{
    Address, Covariance, CovarianceKind, Denoiser, DenoiserCovariance, Differentiable, Discrepancy,
    Likelihood, Noise, Operator, Problem, Purpose, Result, Sigma, Smooth,
};
use daps::methods::Preset;
use daps::{Directory, Run, RunEvent};

/// Values of a signal.
const N: usize = 64;

/// A detector that smears neighbours and saturates: y = tanh(1.5 s), s_i = (x_{i-1} + 2 x_i + x_{i+1})/4.
struct Detector;

/// The three values behind an output and their weights; the ends are repeated.
fn behind(i: usize) -> [(usize, f64); 3] {
    [(i.saturating_sub(1), 0.25), (i, 0.5), ((i + 1).min(N - 1), 0.25)]
}

impl Operator for Detector {
    fn name(&self) -> &str {
        "detector"
    }
    fn input_shape(&self) -> &[usize] {
        &[N]
    }
    fn output_shape(&self) -> &[usize] {
        &[N]
    }
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        check_rows("signal", x, &[N])?;
        let seen = |x: &[f64], i| (1.5 * behind(i).iter().map(|(j, w)| w * x[*j]).sum::<f64>()).tanh();
        let y = to_f64(x)?.chunks(N).flat_map(|x| (0..N).map(move |i| seen(x, i))).collect();
        from_f64(y, x.dims(), x.dtype())
    }
    fn select(self: Arc<Self>, _: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }
    fn as_differentiable(&self) -> Option<&dyn Differentiable> {
        Some(self)
    }
}
impl Differentiable for Detector {
    fn vjp(&self, x: &Tensor, r: &Tensor) -> Result<Tensor> {
        let (seen, r) = (to_f64(&self.apply(x)?)?, to_f64(r)?);
        let mut out = vec![0.0; seen.len()];
        for (k, (y, r)) in seen.iter().zip(r).enumerate() {
            for (j, w) in behind(k % N) {
                out[k - k % N + j] += w * 1.5 * (1.0 - y * y) * r;
            }
        }
        from_f64(out, x.dims(), x.dtype())
    }
}

/// y = A(x) + t, where t has Student's law of 3 degrees of freedom: now and then a number is far off.
struct Outliers {
    y: Tensor,
    scale: f64,
}
const FREEDOM: f64 = 3.0;
impl Outliers {
    /// `f(A(x) - y)` of every number, one list a row.
    fn each(&self, seen: &Tensor, f: impl Fn(f64) -> f64) -> Result<Vec<Vec<f64>>> {
        let (seen, y) = (to_f64(seen)?, to_f64(&self.y)?);
        let all: Vec<f64> = seen.iter().zip(y).map(|(a, y)| f(a - y)).collect();
        Ok(all.chunks(N).map(<[f64]>::to_vec).collect())
    }
    fn slope(&self, r: f64) -> f64 {
        -(FREEDOM + 1.0) * r / (FREEDOM * self.scale.powi(2) + r * r)
    }
}

impl Likelihood for Outliers {
    fn name(&self) -> &str {
        "detector with outliers"
    }
    fn input_shape(&self) -> &[usize] {
        &[N]
    }
    fn rows(&self) -> usize {
        self.y.dims()[0]
    }
    fn log_prob(&self, x: &Tensor) -> Result<Vec<f64>> {
        let log = |r: f64| -0.5 * (FREEDOM + 1.0) * (r * r / (FREEDOM * self.scale.powi(2))).ln_1p();
        let each = self.each(&Detector.apply(x)?, log)?;
        Ok(each.iter().map(|row| row.iter().sum()).collect())
    }
    fn select(&self, rows: &[usize]) -> Result<Arc<dyn Likelihood>> {
        let index: Vec<u32> = rows.iter().map(|&r| r as u32).collect();
        let y = self.y.index_select(&Tensor::new(index, &Device::Cpu)?, 0)?;
        Ok(Arc::new(Self { y, scale: self.scale }))
    }
    /// (ν + 1) r²/(ν s² + r²) is 1 in expectation, and its variance is 2ν/(ν + 3).
    fn discrepancy(&self, x: &Tensor) -> Result<Vec<Discrepancy>> {
        let fit = self.each(&Detector.apply(x)?, |r| -r * self.slope(r) / N as f64)?;
        let deviation = (2.0 * FREEDOM / (FREEDOM + 3.0) / N as f64).sqrt();
        let one = |row: Vec<f64>| Discrepancy { value: row.iter().sum(), deviation, ..Discrepancy::UNKNOWN };
        Ok(fit.into_iter().map(one).collect())
    }
    fn fingerprint(&self) -> Option<String> {
        Some(format!("outliers {}, {}, {:?}", self.scale, Detector.fingerprint()?, to_f64(&self.y).ok()?))
    }
    fn as_smooth(&self) -> Option<&dyn Smooth> {
        Some(self)
    }
}
impl Smooth for Outliers {
    fn gradient(&self, x: &Tensor) -> Result<Tensor> {
        let seen = Detector.apply(x)?;
        let slope = from_f64(self.each(&seen, |r| self.slope(r))?.concat(), seen.dims(), seen.dtype())?;
        Detector.vjp(x, &slope)
    }
    fn value_and_gradient(&self, x: &Tensor) -> Result<(Vec<f64>, Tensor)> {
        Ok((self.log_prob(x)?, self.gradient(x)?))
    }
}

/// Independent values around -0.6 or 0.6 with deviation 0.1: E[x0 | x_t] and Var[x0 | x_t] are sums over the two.
struct TwoLevels;
const LEVELS: [f64; 2] = [-0.6, 0.6];
const SPREAD: f64 = 0.1;

/// Mean and variance of a value given x_t = x.
fn denoised(x: f64, sigma: f64) -> (f64, f64) {
    let (v, s) = (SPREAD * SPREAD, sigma * sigma);
    let weight = |m: f64| -0.5 * (x - m).powi(2) / (v + s);
    let p = 1.0 / (1.0 + (weight(LEVELS[0]) - weight(LEVELS[1])).exp());
    let [low, high] = LEVELS.map(|m| (v * x + s * m) / (v + s));
    ((1.0 - p) * low + p * high, v * s / (v + s) + p * (1.0 - p) * (high - low).powi(2))
}

impl Denoiser for TwoLevels {
    fn shape(&self) -> &[usize] {
        &[N]
    }
    fn dtype(&self) -> DType {
        DType::F64
    }
    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        let mean = |(k, x): (usize, f64)| denoised(x, sigma.row(k / N)).0;
        from_f64(to_f64(x)?.into_iter().enumerate().map(mean).collect(), x.dims(), x.dtype())
    }
    fn as_covariance(&self) -> Option<&dyn DenoiserCovariance> {
        Some(self)
    }
}
impl DenoiserCovariance for TwoLevels {
    fn covariance(&self, x: &Tensor, sigma: &Sigma, _: CovarianceKind) -> Result<Covariance> {
        let rows = to_f64(x)?;
        let mean =
            |(i, x): (usize, &[f64])| x.iter().map(|x| denoised(*x, sigma.row(i)).1).sum::<f64>() / N as f64;
        Ok(Covariance::Scalar(rows.chunks(N).enumerate().map(mean).collect()))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "own-problem".into()));
    // A truth of the prior, measured once: t = z/√((z₁² + z₂² + z₃²)/3) is Student's.
    let (noise, scale) = (Noise::chains(5, 1), 0.05);
    let z = |i| noise.normal(Address::new(0, Purpose::Measurement, i), &[N], DType::F64);
    let truth = ((z(0)?.sign()? * LEVELS[1])? + (z(1)? * SPREAD)?)?;
    let chi2 = ((z(2)?.sqr()? + z(3)?.sqr()?)? + z(4)?.sqr()?)?;
    let outliers = (z(5)? / (chi2 / FREEDOM)?.sqrt()?)?;
    let y = (Detector.apply(&truth)? + (outliers * scale)?)?;

    let problem = Problem::new(Arc::new(TwoLevels), Arc::new(Outliers { y, scale }))?;
    let run = Run::of(problem).method(Preset::Fast).chains(32).seed(1).truth(truth).named("signal");
    let run = run.prior_named("two levels").build()?;

    // Stopped after ten levels, then resumed: the samples are those of a run in memory, to the bit.
    let directory =
        |resume| Directory { path: path.clone(), resume, checkpoint_every: std::time::Duration::MAX };
    let mut stop = |event: &RunEvent| match event {
        RunEvent::Level(level) if level.level == 9 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    println!("{}", run.execute(&directory(false), &mut stop).err().ok_or("it was to stop")?);
    let summary = run.execute(&directory(true), &mut ())?;
    let posterior = run.sample(&mut ())?;
    assert_eq!(posterior.summary.residual_chi2, summary.residual_chi2, "a resumed run has the same bits");
    assert!((0.6..1.5).contains(&summary.residual_chi2), "{}", summary.residual_chi2);
    let (share, exact) = summary.coverage().ok_or("the truth is known")?;
    println!(
        "discrepancy {:.2} (exact: 1); truth between the samples {share:.2} (exact: {exact:.2})",
        summary.residual_chi2
    );
    println!("open {}", path.join("report.html").display());
    Ok(())
}
