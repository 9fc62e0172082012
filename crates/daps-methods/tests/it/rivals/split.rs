//! DPnP and PnP-DM: split Gibbs samplers at a coupling that falls.

use daps_core::Method;
use daps_methods::{Dpnp, PnpDm, Reverse};

use super::law::{BETA, CHAINS, Law, MEAN, SINGULAR, STD, Y, agrees, denoiser, draw, measured};

/// Their claim is the posterior as the coupling vanishes: the recursion is exact at any coupling, and a long chain at a fixed
/// one reaches the coupled target's own posterior.
#[test]
fn split_gibbs_samplers_follow_their_recursion_and_reach_the_posterior_of_the_coupled_target() {
    let reverse = Reverse { steps: 60, max: 80.0, min: 0.002 };
    // The reverse diffusion is affine: x' = a x + b + √c z.
    let affine = |i: usize, rho: f64| {
        let mut map = (1.0, 0.0, 0.0);
        for w in reverse.levels(rho).windows(2) {
            let keep = (w[1] / w[0]).powi(2);
            let (p, q) = denoiser(i, w[0]);
            let (a, b) = (keep + (1.0 - keep) * p, (1.0 - keep) * q);
            map = (a * map.0, a * map.1 + b, a * a * map.2 + w[1] * w[1] * (1.0 - keep));
        }
        map
    };
    let step = |law: Law, i: usize, rho: f64| {
        let (s, precision) = (SINGULAR[i], rho.powi(-2) + (SINGULAR[i] / BETA).powi(2));
        let data = if s > 0.0 { s * measured(i) / (BETA * BETA) } else { 0.0 };
        let z = law.pushed(rho.powi(-2) / precision, data / precision, 1.0 / precision);
        let (a, b, c) = affine(i, rho);
        z.pushed(a, b, c)
    };
    let pnp = PnpDm { iterations: 25, rho: 4.0, decay: 0.8, rho_min: 0.2, reverse, ..PnpDm::default() };
    let couplings = |k: usize| (4.0 * 0.8f64.powi(k as i32)).max(0.2);
    agrees("pnp_dm", &draw(&pnp, CHAINS), |i| {
        (0..25).fold(Law { mean: 0.0, variance: 0.0 }, |law, k| step(law, i, couplings(k)))
    });
    let dpnp = Dpnp { iterations: 12, hold: 2, eta: 2.0, eta_min: 0.2, reverse, ..Dpnp::default() };
    agrees("dpnp", &draw(&dpnp, CHAINS), |i| {
        (0..12).fold(Law { mean: 0.0, variance: 0.0 }, |law, k: usize| {
            let t = k.saturating_sub(2) as f64 / 9.0;
            step(law, i, 2.0 * 0.1f64.powf(t))
        })
    });
    // With a long chain and a fine grid the law is that of x in the coupled target: the measurement blurred by ρ.
    let fine = Reverse { steps: 1000, max: 80.0, min: 0.002 };
    let long =
        PnpDm { iterations: 60, rho: 0.3, decay: 1.0, rho_min: 0.3, reverse: fine, ..PnpDm::default() };
    let as_long = Dpnp { iterations: 60, hold: 0, eta: 0.3, eta_min: 0.3, reverse: fine, ..Dpnp::default() };
    for (name, values) in [("pnp_dm", draw(&long, 1500)), ("dpnp", draw(&as_long, 1500))] {
        for i in 0..4 {
            let blurred = BETA * BETA + (SINGULAR[i] * 0.3).powi(2);
            let precision = STD[i].powi(-2) + SINGULAR[i].powi(2) / blurred;
            let data = if i < 3 { SINGULAR[i] * Y[i] / blurred } else { 0.0 };
            let mean = (MEAN[i] / STD[i].powi(2) + data) / precision;
            let column: Vec<f64> = values.iter().skip(i).step_by(4).copied().collect();
            let n = column.len() as f64;
            let found = column.iter().sum::<f64>() / n;
            let error = (1.0 / precision / n).sqrt();
            // 2 % of a deviation for the grid that is left.
            let slack = 0.02 / precision.sqrt();
            assert!((found - mean).abs() < 4.5 * error + slack, "{name} [{i}]: {found} vs {mean}");
            let ratio = column.iter().map(|v| (v - found).powi(2)).sum::<f64>() / (n - 1.0) * precision;
            assert!((ratio - 1.0).abs() < 4.5 * (2.0 / n).sqrt() + 0.04, "{name} [{i}]: variance x {ratio}");
        }
    }
}

/// The end of a long chain has forgotten its first couplings.
#[test]
fn couplings_fall_as_the_papers_have_it() {
    let pnp = PnpDm { iterations: 5, rho: 4.0, decay: 0.5, rho_min: 0.8, ..PnpDm::default() };
    assert_eq!(pnp.schedule().unwrap().sigmas(), [4.0, 2.0, 1.0, 0.8, 0.8, 0.0]);
    // Two at η_0, the first and one that is held, then three factors of 4^(-1/3).
    let dpnp = Dpnp { iterations: 5, hold: 1, eta: 4.0, eta_min: 1.0, ..Dpnp::default() };
    let third = 4f64.powf(-1.0 / 3.0);
    let expected = [4.0, 4.0, 4.0 * third, 4.0 * third * third, 1.0, 0.0];
    let found = dpnp.schedule().unwrap();
    assert_eq!(found.sigmas().len(), expected.len());
    for (found, expected) in found.sigmas().iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found} vs {expected}");
    }
}
