//! Posterior samples for a forward model of one's own: a picture of which only the means of its rows and columns were measured.
//!
//! `cargo run --release -p daps --example own_operator` writes `own-operator.png`: truth, four samples, mean.

use std::path::Path;
use std::sync::Arc;

use daps::core::candle::{DType, Device, Tensor};
use daps::core::tensors::{check_rows, to_f64};
use daps::core::{
    Address, Error, Gaussian, Linear, Method, Model, Noise, Operator, Problem, Purpose, Result,
};
use daps::methods::Preset;
use daps::{bundled, load, operators, picture, prior};

/// y = the means of the rows, then of the columns, of every channel.
struct Projections {
    input: Vec<usize>,
    output: Vec<usize>,
}

impl Projections {
    fn new(channels: usize, height: usize, width: usize) -> Self {
        Self { input: vec![channels, height, width], output: vec![channels, height + width] }
    }
}

/// Refuses what is no batch of this shape: the laws ask for it, so that mistakes are found where they are made.
fn checked(x: &Tensor, shape: &[usize]) -> Result<()> {
    check_rows("tensor of projections", x, shape)?;
    match x.dtype() {
        DType::F32 | DType::F64 => Ok(()),
        other => Err(Error::invalid("tensor of projections", "f32 or f64", other.as_str())),
    }
}

impl Operator for Projections {
    fn name(&self) -> &str {
        "projections"
    }
    fn input_shape(&self) -> &[usize] {
        &self.input
    }
    fn output_shape(&self) -> &[usize] {
        &self.output
    }

    /// Tensors have a first dimension of chains.
    fn apply(&self, x: &Tensor) -> Result<Tensor> {
        checked(x, &self.input)?;
        Ok(Tensor::cat(&[x.mean(3)?, x.mean(2)?], 2)?)
    }

    /// One operator serves all chains.
    fn select(self: Arc<Self>, _: &[usize]) -> Result<Arc<dyn Operator>> {
        Ok(self)
    }

    /// What is linear can be conditioned on exactly. An operator that is not has `as_differentiable` instead, and the same
    /// presets draw by dynamics.
    fn as_linear(&self) -> Option<&dyn Linear> {
        Some(self)
    }
}

impl Linear for Projections {
    fn adjoint(&self, r: &Tensor) -> Result<Tensor> {
        checked(r, &self.output)?;
        let (h, w) = (self.input[1], self.input[2]);
        let rows = (r.narrow(2, 0, h)?.unsqueeze(3)? / w as f64)?;
        let columns = (r.narrow(2, h, w)?.unsqueeze(2)? / h as f64)?;
        Ok(rows.broadcast_add(&columns)?)
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    const CHAINS: usize = 4;
    const NOISE: f64 = 0.02;
    let model = prior::build(&mut prior::named("faces")?, &[], Path::new(""))?.model;
    let Model::Denoiser(faces) = model else { return Err("faces is a denoiser".into()) };
    let &[c, h, w] = faces.shape() else { return Err("faces are images".into()) };
    let operator: Arc<dyn Operator> = Arc::new(Projections::new(c, h, w));

    // The truth is a face that the prior has not seen; the laws find a wrong adjoint at once.
    let face = &bundled::FACES[0];
    let (truth, _) = load::decode(Path::new(face.name), face.bytes, &[c, h, w], true)?;
    let x = Tensor::from_vec(truth.clone(), (1, c, h, w), &Device::Cpu)?;
    operators::laws::all(&operator, &x, 0)?;

    let noise = Noise::chains(7, 1);
    let z = noise.normal(Address::new(0, Purpose::Measurement, 0), operator.output_shape(), DType::F64)?;
    let y = (operator.apply(&x)? + (z * NOISE)?)?.to_dtype(faces.dtype())?;
    let y = Tensor::cat(&[&y; CHAINS], 0)?;
    let likelihood = Gaussian::new(operator.clone(), y.clone(), NOISE)?;
    let task = Problem::new(faces.clone(), Arc::new(likelihood))?;

    let method = Preset::Best.settings(&*task.likelihood, None, None)?;
    method.check(&task)?;
    let samples = method.sample(&task, &Noise::chains(0, CHAINS), None, &mut ())?.x;

    let residual = to_f64(&(operator.apply(&samples)? - &y)?)?;
    let chi2 = residual.iter().map(|r| (r / NOISE).powi(2)).sum::<f64>() / residual.len() as f64;
    // Exact samples have 1. Ours are somewhat above it here, probably because the prior's variances are means over rings of
    // frequencies, and this operator sees the two axes alone.
    println!("chi2 per measured number: {chi2:.3} (1 for exact posterior samples)");
    let values = to_f64(&samples)?;
    let mean: Vec<f64> = to_f64(&samples.mean(0)?)?;
    let mut images = vec![truth];
    images.extend(values.chunks(c * h * w).map(<[f64]>::to_vec));
    images.push(mean);
    picture::write_grid(Path::new("own-operator.png"), &images, [c, h, w], (-1.0, 1.0), images.len(), 2)?;
    println!("own-operator.png: truth, {CHAINS} samples, mean");
    Ok(())
}
