//! Methods that walk down the levels once: DDRM, DDNM+ and DiffPIR.

use daps_methods::{Ddnm, Ddrm, DiffPir};

use super::law::{BETA, CHAINS, Law, SINGULAR, agrees, denoiser, draw, levels, measured, schedules};

#[test]
fn ddrm_follows_its_recursion_in_every_kind_of_mode() {
    let settings = schedules(&Ddrm::default().schedule);
    for (schedule, (eta, eta_b)) in
        settings.iter().flat_map(|s| [(0.85, 1.0), (0.3, 0.6)].map(|etas| (s.clone(), etas)))
    {
        let method = Ddrm { eta, eta_b, schedule };
        let steps = levels(&method.schedule);
        agrees(&format!("{method:?}"), &draw(&method, CHAINS), |i| {
            let (spread, y) = (BETA / SINGULAR[i], measured(i) / SINGULAR[i]);
            let first = steps[0].0;
            let mut law = if SINGULAR[i] > 0.0 && first > spread {
                Law { mean: y, variance: first * first - spread * spread }
            } else {
                Law { mean: 0.0, variance: first * first }
            };
            for &(sigma, next) in &steps {
                let (p, q) = denoiser(i, sigma);
                let keep = (1.0 - eta * eta).sqrt();
                law = if SINGULAR[i] == 0.0 {
                    let r = keep * next / sigma;
                    law.pushed(p + r * (1.0 - p), q - r * q, (eta * next).powi(2))
                } else if next < spread {
                    let r = keep * next / spread;
                    law.pushed(p * (1.0 - r), q * (1.0 - r) + r * y, (eta * next).powi(2))
                } else {
                    let c = next * next - (eta_b * spread).powi(2);
                    law.pushed((1.0 - eta_b) * p, (1.0 - eta_b) * q + eta_b * y, c)
                };
            }
            law
        });
    }
}

/// The recursion in the variable u = √ᾱ x of the paper, with ε the predicted noise.
#[test]
fn ddnm_follows_its_variance_preserving_recursion() {
    for schedule in schedules(&Ddnm::default().schedule) {
        let method = Ddnm { eta: 0.7, schedule };
        let steps = levels(&method.schedule);
        let keep = (1.0 - 0.7f64 * 0.7).sqrt();
        agrees(&format!("{method:?}"), &draw(&method, CHAINS), |i| {
            let alpha = |sigma: f64| 1.0 / (1.0 + sigma * sigma);
            let first = alpha(steps[0].0);
            let mut law = Law { mean: 0.0, variance: 1.0 - first };
            for &(sigma, next) in &steps {
                let (a, b) = (alpha(sigma), alpha(next));
                let (p, q) = denoiser(i, sigma);
                let p = p / a.sqrt();
                let (noise, s) = ((1.0 - b).sqrt(), SINGULAR[i]);
                law = if s == 0.0 {
                    // ε = (u - √ᾱ D)/√(1-ᾱ)
                    let e = keep * noise / (1.0 - a).sqrt();
                    law.pushed(
                        b.sqrt() * p + e * (1.0 - a.sqrt() * p),
                        (b.sqrt() - e * a.sqrt()) * q,
                        (0.7 * noise).powi(2),
                    )
                } else {
                    let limit = b.sqrt() * BETA / s;
                    let y = measured(i) / s;
                    let lambda = if noise >= limit { 1.0 } else { s * noise * keep / (b.sqrt() * BETA) };
                    let variance =
                        if noise >= limit { noise * noise - limit * limit } else { (0.7 * noise).powi(2) };
                    law.pushed(
                        b.sqrt() * (1.0 - lambda) * p,
                        b.sqrt() * ((1.0 - lambda) * q + lambda * y),
                        variance,
                    )
                };
            }
            law
        });
    }
}

#[test]
fn diffpir_follows_its_variance_preserving_recursion() {
    for schedule in schedules(&DiffPir::default().schedule) {
        let method = DiffPir { lambda: 2.0, zeta: 0.4, schedule };
        let steps = levels(&method.schedule);
        agrees(&format!("{method:?}"), &draw(&method, CHAINS), |i| {
            let alpha = |sigma: f64| 1.0 / (1.0 + sigma * sigma);
            let mut law = Law { mean: 0.0, variance: 1.0 - alpha(steps[0].0) };
            for &(sigma, next) in &steps {
                let (a, b) = (alpha(sigma), alpha(next));
                let (p, q) = denoiser(i, sigma);
                let p = p / a.sqrt();
                // argmin (y - s x)² + ρ (x - D)², ρ = λ β² ᾱ/(1 - ᾱ)
                let rho = 2.0 * BETA * BETA * a / (1.0 - a);
                let s = SINGULAR[i];
                let (w, pull) =
                    (rho / (s * s + rho), if s > 0.0 { s * measured(i) / (s * s + rho) } else { 0.0 });
                let (m, c) = (w * p, w * q + pull);
                let e = ((1.0 - b) * (1.0 - 0.4) / (1.0 - a)).sqrt();
                law = law.pushed(
                    b.sqrt() * m + e * (1.0 - a.sqrt() * m),
                    (b.sqrt() - e * a.sqrt()) * c,
                    0.4 * (1.0 - b),
                );
            }
            law
        });
    }
}
