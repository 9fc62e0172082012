//! Spreads by frequency in the whole loop: on a Gaussian prior whose variances are a function of frequency, the posterior
//! comes out at any number of levels, and no row depends on its neighbours.

use std::sync::Arc;

use daps_core::candle::{DType, Tensor};
use daps_core::tensors::{from_f64, to_f64};
use daps_core::{
    Address, Bands, Beta, Center, Cosines, Covariance, Denoiser, Error, Estimate, Frequency, Gaussian,
    Likelihood, Method, Noise, Operator, Problem, Purpose, RHO, Row, Schedule, ScheduleRule, Sigma, Spread,
    SpreadTable, linear_measurement,
};
use daps_methods::Daps;
use daps_methods::kernel::{Exact, KernelConfig, Underdamped};
use daps_metrics::moments::Moments;
use daps_operators::{Blur, BlurKernel, Border, Inpainting, SuperResolution, box_mask, random_mask};
use daps_priors::GaussianMixture;

const SHAPE: [usize; 3] = [1, 4, 6];
const MEAN: f64 = 0.2;

/// The prior's variance at a frequency.
fn power(frequency: f64) -> f64 {
    1.0 / (1.0 + 40.0 * frequency.powi(2))
}

/// The Gaussian prior with its table in closed form.
struct Stationary {
    prior: GaussianMixture,
    table: SpreadTable,
}

impl Stationary {
    fn new(schedule: &ScheduleRule) -> Self {
        let cosines = Arc::new(Cosines::new(&SHAPE).unwrap());
        let mut frequency = cosines.frequencies();
        let powers = frequency.iter().map(|f| power(*f)).collect();
        let covariance = Covariance::Frequency(Frequency::new(cosines, powers).unwrap()).row(0).unwrap();
        let prior = GaussianMixture::gaussian(&SHAPE, vec![MEAN; 24], covariance).unwrap();
        frequency.sort_by(f64::total_cmp);
        frequency.dedup();
        let mut sigma: Vec<f64> = Schedule::new(schedule).unwrap().steps().map(|s| s.sigma).collect();
        sigma.reverse();
        let left = |s: f64, f: f64| s * s * power(f) / (s * s + power(f));
        let variance = sigma.iter().map(|s| frequency.iter().map(|f| left(*s, *f)).collect()).collect();
        let bands = Some(Bands { frequency, variance, correlation: None });
        let table = SpreadTable { r: vec![1.0; sigma.len()], sigma, data_std: 1.0, bands };
        table.check().unwrap();
        Self { prior, table }
    }
}

impl Denoiser for Stationary {
    fn shape(&self) -> &[usize] {
        self.prior.shape()
    }
    fn dtype(&self) -> DType {
        self.prior.dtype()
    }
    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor, Error> {
        self.prior.denoise(x, sigma)
    }
    fn as_spread(&self) -> Option<&SpreadTable> {
        Some(&self.table)
    }
}

fn daps(levels: usize, kernel: KernelConfig) -> Daps {
    let schedule = ScheduleRule::Poly { levels, max: 300.0, min: 0.1, rho: RHO };
    let estimate = Estimate::Gaussian { center: Center::Tweedie, spread: Spread::Frequencies(1.0) };
    Daps { beta: None, schedule, estimate, kernel }
}

fn operators() -> Vec<Arc<dyn Operator>> {
    let mask = random_mask(4, 6, 0.6, 3).unwrap();
    vec![
        Arc::new(SuperResolution::new(&SHAPE, 2).unwrap()),
        Arc::new(Inpainting::new(&SHAPE, &mask).unwrap()),
    ]
}

#[test]
fn the_posterior_comes_out_at_any_number_of_levels() {
    let chains = 8000;
    let dynamics = || KernelConfig::Underdamped(Underdamped { steps: 100, time_step: 1.2 });
    let exact = || KernelConfig::Exact(Exact::default());
    for operator in operators() {
        for (levels, kernel) in [(1, exact()), (4, exact()), (4, dynamics())] {
            let daps = daps(levels, kernel);
            let prior = Arc::new(Stationary::new(&daps.schedule));
            let size: usize = operator.output_shape().iter().product();
            let one: Vec<f64> = (0..size).map(|i| (i as f64 * 1.3).sin()).collect();
            let dims = [&[chains], operator.output_shape()].concat();
            let y = from_f64(one.iter().copied().cycle().take(size * chains).collect(), &dims, DType::F64);
            let likelihood = Gaussian::new(Arc::clone(&operator), y.unwrap(), 0.2).unwrap();
            let (at, y) = linear_measurement(&likelihood, 0).unwrap();
            let posterior = prior.prior.mixture().posterior(&at, &y).unwrap();
            let task = Problem::new(prior, Arc::new(likelihood)).unwrap();
            let samples = daps.sample(&task, &Noise::chains(3, chains), None, &mut ()).unwrap();
            let (matrix, d) = (posterior.covariance(), 24);
            let dense: Vec<f64> = (0..d * d).map(|k| matrix[(k / d, k % d)]).collect();
            let moments = Moments::new(&to_f64(&samples.x).unwrap(), d).unwrap();
            let comparison = moments.compare(&posterior.mean(), &dense).unwrap();
            assert!(
                comparison.agrees(1e-5),
                "{}, {levels} levels, {:?}: {comparison:?}",
                operator.name(),
                daps.kernel
            );
        }
    }
}

/// Of a clean measurement too, where the blur has a symmetric kernel, where it has none, and where pixels are masked.
#[test]
fn a_clean_measurement_has_its_posterior_at_any_number_of_levels() {
    let (chains, d, beta) = (6000, 24, 2e-3);
    let shake = [0.0, 0.2, 0.05, 0.1, 0.4, 0.0, 0.25, 0.0, 0.0];
    let blur = |values: &[f64]| {
        Arc::new(Blur::new(&SHAPE, &[BlurKernel::new(values, 3, 3).unwrap()], Border::Reflect).unwrap())
    };
    let even = [0.05, 0.1, 0.05, 0.1, 0.4, 0.1, 0.05, 0.1, 0.05];
    let mut all = operators();
    all.extend([blur(&even) as Arc<dyn Operator>, blur(&shake)]);
    for (operator, levels) in all.into_iter().flat_map(|o| [(o.clone(), 1), (o, 5)]) {
        let daps = daps(levels, KernelConfig::Exact(Exact::default()));
        let prior = Arc::new(Stationary::new(&daps.schedule));
        let x = Noise::chains(4, 1).normal(Address::new(0, Purpose::Truth, 0), &SHAPE, DType::F64).unwrap();
        let one = to_f64(&operator.apply(&x).unwrap()).unwrap();
        let dims = [&[chains], operator.output_shape()].concat();
        let y = one.iter().copied().cycle().take(one.len() * chains).collect();
        let y = from_f64(y, &dims, DType::F64).unwrap();
        let likelihood = Gaussian::new(Arc::clone(&operator), y, beta).unwrap();
        let (at, y) = linear_measurement(&likelihood, 0).unwrap();
        let posterior = prior.prior.mixture().posterior(&at, &y).unwrap();
        let task = Problem::new(prior, Arc::new(likelihood)).unwrap();
        let samples = daps.sample(&task, &Noise::chains(3, chains), None, &mut ()).unwrap();
        let matrix = posterior.covariance();
        let dense: Vec<f64> = (0..d * d).map(|k| matrix[(k / d, k % d)]).collect();
        let moments = Moments::new(&to_f64(&samples.x).unwrap(), d).unwrap();
        let comparison = moments.compare(&posterior.mean(), &dense).unwrap();
        assert!(comparison.agrees(1e-5), "{}, {levels} levels: {comparison:?}", operator.name());
    }
}

/// Masks with and without holes, or kernels with and without a decomposition and of different sums, and a noise level of their
/// own for every row: each row alone has the bits of the batch.
#[test]
fn rows_do_not_depend_on_their_neighbours() {
    let masks: Vec<Tensor> = (0..4)
        .map(|s| if s % 2 == 0 { box_mask(4, 6, 4, 0, s) } else { random_mask(4, 6, 0.5, s) }.unwrap())
        .collect();
    let masked = Inpainting::new(&SHAPE, &Tensor::cat(&masks, 0).unwrap()).unwrap();
    let kernels = [
        [0.1, 0.2, 0.1, 0.1, 0.2, 0.1, 0.05, 0.1, 0.05],
        [0.0, 0.4, 0.0, 0.5, 0.6, 0.2, 0.0, 0.3, 0.0],
        [0.2, 0.0, 0.0, 0.0, 0.2, 0.05, 0.0, 0.0, 0.05],
        [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0],
    ];
    let kernels = kernels.map(|values| BlurKernel::new(&values, 3, 3).unwrap());
    let blurred = Blur::new(&SHAPE, &kernels, Border::Reflect).unwrap();
    each_row_is_itself_alone(Arc::new(masked));
    each_row_is_itself_alone(Arc::new(blurred));
}

fn each_row_is_itself_alone(operator: Arc<dyn Operator>) {
    let at = Address::new(0, Purpose::Instance, 0);
    let y = operator.apply(&Noise::chains(9, 4).normal(at, &SHAPE, DType::F64).unwrap()).unwrap();
    let likelihood = Gaussian::new(operator, y, Beta::Rows(vec![0.05, 0.1, 0.2, 0.3])).unwrap();
    for kernel in [KernelConfig::Exact(Exact::default()), KernelConfig::Underdamped(Underdamped::default())] {
        let daps = daps(3, kernel);
        let prior = Arc::new(Stationary::new(&daps.schedule));
        let sample = |rows: &[usize]| {
            let task = Problem::new(prior.clone(), likelihood.select(rows).unwrap()).unwrap();
            let rows = rows.iter().map(|r| Row { measurement: *r as u64, chain: 0 }).collect();
            to_f64(&daps.sample(&task, &Noise::new(1, rows), None, &mut ()).unwrap().x).unwrap()
        };
        let whole = sample(&[0, 1, 2, 3]);
        for row in 0..4 {
            let what = format!("{}, row {row}, {:?}", likelihood.name(), daps.kernel);
            assert_eq!(sample(&[row]), whole[row * 24..(row + 1) * 24], "{what}");
        }
    }
}
