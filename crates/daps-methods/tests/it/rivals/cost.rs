//! What every rival says that it costs: denoiser calls per sample, as its equations have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use daps_core::candle::{DType, Tensor};
use daps_core::{
    Cotangent, Denoiser, DifferentiableDenoiser, Method, Noise, Ode, Result, ScheduleRule, Sigma,
};
use daps_methods::{
    Dcdp, Ddnm, Ddrm, DiffPir, Dpnp, Dps, FpsSmc, PnpDm, PseudoInverse, RedDiff, Reverse, Wiener,
};
use daps_priors::GaussianMixture;

use super::law::{levels, prior, task};

/// A prior that counts the rows that it denoises.
struct Counting {
    inner: GaussianMixture,
    rows: AtomicUsize,
}

impl Denoiser for Counting {
    fn shape(&self) -> &[usize] {
        self.inner.shape()
    }

    fn dtype(&self) -> DType {
        self.inner.dtype()
    }

    fn denoise(&self, x: &Tensor, sigma: &Sigma) -> Result<Tensor> {
        self.rows.fetch_add(x.dims()[0], Ordering::Relaxed);
        self.inner.denoise(x, sigma)
    }

    fn as_differentiable(&self) -> Option<&dyn DifferentiableDenoiser> {
        Some(self)
    }
}

impl DifferentiableDenoiser for Counting {
    fn denoise_vjp(&self, x: &Tensor, sigma: &Sigma, cotangent: &Cotangent) -> Result<(Tensor, Tensor)> {
        self.rows.fetch_add(x.dims()[0], Ordering::Relaxed);
        self.inner.denoise_vjp(x, sigma, cotangent)
    }
}

#[test]
fn denoiser_calls_are_counted_as_they_are_made() {
    const N: usize = 7;
    const CHAINS: usize = 2;
    let schedule = || ScheduleRule::Geometric { levels: N, max: 3.0, min: 0.4 };
    let (ode, reverse) = (Ode::paper(5), Reverse { steps: 30, ..Reverse::default() });
    let purified: usize = levels(&schedule()).iter().map(|(sigma, _)| ode.grid(*sigma, 5).len() - 1).sum();
    let pnp = PnpDm { iterations: 6, rho: 4.0, decay: 0.5, reverse, ..PnpDm::default() };
    let dpnp = Dpnp { iterations: 6, hold: 2, reverse, ..Dpnp::default() };
    // A reverse diffusion asks at the coupling itself and at every point of its grid below.
    let diffused = |method: &dyn Method| -> usize {
        let couplings = method.schedule().unwrap();
        couplings.steps().map(|step| reverse.levels(step.sigma).len() - 1).sum()
    };
    let (by_pnp, by_dpnp) = (diffused(&pnp), diffused(&dpnp));
    assert!(by_pnp > 6 && by_dpnp > by_pnp, "{by_pnp}, {by_dpnp}");
    let cases: Vec<(Box<dyn Method>, usize)> = vec![
        (Box::new(Dps { schedule: schedule(), ..Dps::default() }), N),
        (Box::new(Ddrm { schedule: schedule(), ..Ddrm::default() }), N),
        (Box::new(Ddnm { schedule: schedule(), ..Ddnm::default() }), N),
        (Box::new(DiffPir { schedule: schedule(), ..DiffPir::default() }), N),
        (Box::new(RedDiff { schedule: schedule(), ..RedDiff::default() }), N),
        (Box::new(FpsSmc { schedule: schedule(), particles: 3, ..FpsSmc::default() }), 3 * N),
        (Box::new(Dcdp { schedule: schedule(), ode, ..Dcdp::default() }), purified),
        (Box::new(pnp), by_pnp),
        (Box::new(dpnp), by_dpnp),
        (Box::new(Wiener::default()), 0),
        (Box::new(PseudoInverse::default()), 0),
    ];
    for (method, expected) in &cases {
        let counting = Arc::new(Counting { inner: prior(), rows: AtomicUsize::new(0) });
        let task = task(counting.clone(), CHAINS);
        let samples = method.sample(&task, &Noise::chains(0, CHAINS), None, &mut ()).unwrap();
        let name = method.info().name;
        assert_eq!(samples.cost.nfe, *expected, "{name} says");
        assert_eq!(counting.rows.load(Ordering::Relaxed), CHAINS * expected, "{name} makes");
    }
}
