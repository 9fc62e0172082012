//! Exact draw for an operator that applies one piecewise-linear function to every value, such as HDR's clipping.
//!
//! Within a piece the conditional is a normal; the whole is a mixture of normals cut to their pieces. A piece is chosen
//! by its uncut mass and a draw from its uncut normal is kept if it falls inside the piece, which is exact and cheap. The
//! few values that are refused several times get their pieces weighed with the cut masses, in logs, and a cut normal.

use daps_core::candle::Tensor;
use daps_core::mixture::choose;
use daps_core::tensors::{BLOCK, Real, pick, to_f64, with_slice};
use daps_core::{
    Address, Beta, ChainInfo, Covariance, Error, Gaussian, Noise, Piece, Purpose, Result, Step, fill_normal,
    open01, with_real,
};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

/// Proposals before the cut masses are computed.
const TRIES: usize = 4;

/// ln of a share below the resolution of a uniform draw in f64.
const NEGLIGIBLE: f64 = -37.0;

/// A distance from the centre, in deviations, beyond which a normal falls off within rounding of where it is cut. Its square is
/// still finite, as the rejection needs it.
const FAR: f64 = 1e100;

/// Most pieces that a function may have.
const MAX_PIECES: usize = 8;

pub(super) fn draw(
    mean: &Tensor,
    covariance: &Covariance,
    likelihood: &Gaussian,
    pieces: &[Piece],
    noise: &Noise,
    step: &Step,
) -> Result<(Tensor, ChainInfo)> {
    if pieces.is_empty() || pieces.len() > MAX_PIECES {
        return Err(Error::invalid("pixelwise operator", format!("1 to {MAX_PIECES} pieces"), pieces.len()));
    }
    let x = with_real!(mean.dtype(), T => values::<T>(mean, covariance, likelihood, pieces, noise, step))?;
    Ok((x, super::info(mean.dims()[0], 0)))
}

fn values<T: Real>(
    mean: &Tensor,
    covariance: &Covariance,
    likelihood: &Gaussian,
    pieces: &[Piece],
    noise: &Noise,
    step: &Step,
) -> Result<Tensor> {
    let n = mean.elem_count() / mean.dims()[0].max(1);
    let variances = match covariance {
        Covariance::Scalar(_) => None,
        Covariance::Diagonal(c) => Some(to_f64(c)?),
        Covariance::Dense(_) | Covariance::Frequency(_) => {
            return Err(Error::missing("the pixelwise draw", "a scalar or diagonal spread", "this estimate"));
        }
    };
    let betas = match likelihood.beta() {
        Beta::Rows(_) => None,
        Beta::Each(b) => Some((to_f64(b)?, b.dims()[0] == 1)),
    };
    let y = likelihood.y().to_dtype(mean.dtype())?;
    let mut out = vec![T::default(); mean.elem_count()];
    with_slice(mean, |mean: &[T]| {
        with_slice(&y, |y: &[T]| {
            for (row, out) in out.chunks_mut(n.max(1)).enumerate() {
                let level = |k: usize| {
                    let variance = match (&variances, covariance) {
                        (Some(v), _) => v[row * n + k],
                        (None, Covariance::Scalar(c)) => pick(c, row),
                        (None, _) => f64::NAN,
                    };
                    let beta = match (&betas, likelihood.beta()) {
                        (Some((b, shared)), _) => b[if *shared { k } else { row * n + k }],
                        (None, Beta::Rows(b)) => pick(b, row),
                        (None, Beta::Each(_)) => f64::NAN,
                    };
                    (variance, beta)
                };
                let uniform = variances.is_none() && betas.is_none();
                let first = Pieces::new(pieces, level(0));
                out.par_chunks_mut(BLOCK).enumerate().for_each(|(block, out)| {
                    let at = Address::new(step.index, Purpose::Kernel, block);
                    let mut rng = noise.stream(row, at);
                    for (k, out) in (block * BLOCK..).zip(out) {
                        let (mean, y) = (mean[row * n + k].wide(), y[row * n + k].wide());
                        *out = T::of(if uniform {
                            first.draw(mean, y, &mut rng)
                        } else {
                            Pieces::new(pieces, level(k)).draw(mean, y, &mut rng)
                        });
                    }
                });
            }
        })
    })??;
    Ok(Tensor::from_vec(out, mean.dims(), mean.device())?)
}

/// What the pieces share between values of the same spread and noise.
struct Pieces<'a> {
    pieces: &'a [Piece],
    variance: f64,
    /// For each piece: 1/(variance of y given the piece), half that variance's logarithm, and the conditional's
    /// standard deviation.
    constants: [(f64, f64, f64); MAX_PIECES],
}

impl<'a> Pieces<'a> {
    fn new(pieces: &'a [Piece], (variance, beta): (f64, f64)) -> Self {
        let mut constants = [(0.0, 0.0, 0.0); MAX_PIECES];
        for (c, p) in constants.iter_mut().zip(pieces) {
            let total = beta * beta + p.slope * p.slope * variance;
            *c = (1.0 / total, 0.5 * total.ln(), beta * (variance / total).sqrt());
        }
        Self { pieces, variance, constants }
    }

    /// ln of a piece's uncut mass N(y; slope·mean + offset, β² + slope² r²), and the centre of its normal.
    #[inline]
    fn uncut(&self, k: usize, mean: f64, y: f64) -> (f64, f64) {
        let (p, (precision, log_root, _)) = (&self.pieces[k], self.constants[k]);
        let surprise = y - p.offset - p.slope * mean;
        let weighed = surprise * precision;
        (-0.5 * surprise * weighed - log_root, mean + self.variance * p.slope * weighed)
    }

    fn draw(&self, mean: f64, y: f64, rng: &mut ChaCha8Rng) -> f64 {
        // Where no proposal would ever be kept, the value itself tells that its chain left the finite numbers.
        if !mean.is_finite() || self.variance == 0.0 {
            return mean;
        }
        if !(self.variance.is_finite() && self.variance > 0.0) {
            return f64::NAN;
        }
        let mut mass = [f64::NEG_INFINITY; MAX_PIECES];
        let mut center = [0.0; MAX_PIECES];
        let count = self.pieces.len();
        for k in 0..count {
            (mass[k], center[k]) = self.uncut(k, mean, y);
        }
        let (mut best, mut alone) = (0, true);
        for k in 1..count {
            if mass[k] > mass[best] {
                best = k;
            }
        }
        let mut weight = [0.0; MAX_PIECES];
        let mut sum = 0.0;
        for k in 0..count {
            let below = mass[k] - mass[best];
            // A piece that is never chosen in 2^53 draws needs no exponential here; the cut masses below still count it.
            if below > NEGLIGIBLE {
                weight[k] = if k == best { 1.0 } else { below.exp() };
                sum += weight[k];
                alone &= k == best;
            }
        }
        for _ in 0..TRIES {
            let k = if alone { best } else { pick_piece(&weight[..count], sum, rng) };
            let mut z = [0.0f64];
            fill_normal(rng, &mut z);
            let x = center[k] + self.constants[k].2 * z[0];
            if x >= self.pieces[k].low && x < self.pieces[k].high {
                return x;
            }
        }
        self.draw_cut(&mass[..count], &center, rng)
    }

    fn draw_cut(&self, mass: &[f64], center: &[f64; MAX_PIECES], rng: &mut ChaCha8Rng) -> f64 {
        let ends = |k: usize| {
            let (p, spread) = (&self.pieces[k], self.constants[k].2);
            ((p.low - center[k]) / spread, (p.high - center[k]) / spread)
        };
        let mut logs = [f64::NEG_INFINITY; MAX_PIECES];
        for (k, log) in logs.iter_mut().enumerate().take(mass.len()) {
            let (a, b) = ends(k);
            *log = mass[k] + ln_normal_between(a, b);
        }
        let k = choose(&logs[..mass.len()], open01(rng));
        let (a, b) = ends(k);
        let x = center[k] + self.constants[k].2 * cut_normal(a, b, rng);
        x.clamp(self.pieces[k].low, self.pieces[k].high)
    }
}

fn pick_piece(weight: &[f64], sum: f64, rng: &mut ChaCha8Rng) -> usize {
    let mut left = open01(rng) * sum;
    let mut k = 0;
    while k + 1 < weight.len() && left > weight[k] {
        left -= weight[k];
        k += 1;
    }
    k
}

/// ln P(Z > a) for a standard normal Z.
fn ln_upper(a: f64) -> f64 {
    if a < 25.0 {
        return (0.5 * libm::erfc(a * std::f64::consts::FRAC_1_SQRT_2)).ln();
    }
    // Mills ratio series; its first neglected term is 105/a⁸ < 1e-9 here.
    let s = 1.0 / (a * a);
    -0.5 * a * a - (a * (2.0 * std::f64::consts::PI).sqrt()).ln()
        + (-s * (1.0 - 3.0 * s * (1.0 - 5.0 * s))).ln_1p()
}

/// ln P(a < Z < b) for a standard normal Z, exact far into the tails.
pub(super) fn ln_normal_between(a: f64, b: f64) -> f64 {
    if a >= b {
        return f64::NEG_INFINITY;
    }
    if b <= 0.0 {
        return ln_normal_between(-b, -a);
    }
    if a >= 0.0 {
        let (upper, beyond) = (ln_upper(a), ln_upper(b));
        return upper + ln_one_minus_exp(beyond - upper);
    }
    // The interval holds zero: the two tails are cut off from 1.
    (-(ln_upper(-a).exp()) - ln_upper(b).exp()).ln_1p()
}

/// ln(1 - eᵗ) for t <= 0.
fn ln_one_minus_exp(t: f64) -> f64 {
    if t > -std::f64::consts::LN_2 { (-t.exp_m1()).ln() } else { (-t.exp()).ln_1p() }
}

/// A standard normal draw given a < Z < b, by rejection from whichever envelope fits the interval.
pub(super) fn cut_normal(a: f64, b: f64, rng: &mut ChaCha8Rng) -> f64 {
    // Nothing lies inside, and a rejection would go on for ever.
    if a.is_nan() || b.is_nan() || a >= b {
        return a;
    }
    if b <= 0.0 {
        return -cut_normal(-b, -a, rng);
    }
    let mut z = [0.0f64];
    if a <= 0.0 {
        if b - a > 1.5 {
            loop {
                fill_normal(rng, &mut z);
                if z[0] > a && z[0] < b {
                    return z[0];
                }
                // A one-sided sliver on either side of zero keeps at least P(0 < Z < 0.75) = 27 %.
            }
        }
        return uniform_envelope(a, b, 0.0, rng);
    }
    if a >= FAR {
        return a;
    }
    // Right of zero: an exponential of the best rate, or a uniform where the interval is short against 1/a.
    let rate = 0.5 * (a + (a * a + 4.0).sqrt());
    if (b - a) * rate < 1.0 {
        return uniform_envelope(a, b, a, rng);
    }
    loop {
        let x = a - open01(rng).ln() / rate;
        if x < b && open01(rng).ln() <= -0.5 * (x - rate) * (x - rate) {
            return x;
        }
    }
}

/// Rejection from a uniform on (a, b), where the density is largest at `peak`.
fn uniform_envelope(a: f64, b: f64, peak: f64, rng: &mut ChaCha8Rng) -> f64 {
    loop {
        let x = a + (b - a) * open01(rng);
        if open01(rng).ln() <= 0.5 * (peak * peak - x * x) {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daps_metrics::ks::ks_one_sample;

    fn rng() -> ChaCha8Rng {
        Noise::chains(11, 1).stream(0, Address::new(0, Purpose::Kernel, 0))
    }

    /// The pieces of HDR at scale 2.
    fn hdr() -> [Piece; 3] {
        let inf = f64::INFINITY;
        [
            Piece { low: -inf, high: -0.5, slope: 0.0, offset: -1.0 },
            Piece { low: -0.5, high: 0.5, slope: 2.0, offset: 0.0 },
            Piece { low: 0.5, high: inf, slope: 0.0, offset: 1.0 },
        ]
    }

    /// ∫ of the standard normal density by Simpson's rule on a grid fine against the interval.
    fn integral(a: f64, b: f64, f: impl Fn(f64) -> f64) -> f64 {
        let n = 20_000;
        let h = (b - a) / f64::from(n);
        (0..=n)
            .map(|i| {
                let weight = if i == 0 || i == n {
                    1.0
                } else if i % 2 == 1 {
                    4.0
                } else {
                    2.0
                };
                weight * f(a + f64::from(i) * h)
            })
            .sum::<f64>()
            * h
            / 3.0
    }

    const INTERVALS: [(f64, f64); 8] = [
        (-0.3, 0.9),
        (-3.0, 0.2),
        (0.5, 0.8),
        (0.5, 4.0),
        (3.0, 3.05),
        (6.0, 9.0),
        (-8.0, -5.0),
        (-0.1, 5.0),
    ];

    #[test]
    fn log_probability_of_an_interval_is_its_integral() {
        for (a, b) in INTERVALS {
            let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let exact = integral(a, b, density).ln();
            assert!(
                (ln_normal_between(a, b) - exact).abs() < 1e-7,
                "({a}, {b}): {} vs {exact}",
                ln_normal_between(a, b)
            );
        }
        // Continuity where the series takes over.
        let slope = (ln_upper(25.0 + 1e-6) - ln_upper(25.0 - 1e-6)) / 2e-6;
        assert!((slope + 25.04).abs() < 0.01, "{slope}");
        assert!(ln_normal_between(40.0, f64::INFINITY) < -800.0);
    }

    #[test]
    fn cut_normals_have_the_moments_of_their_interval() {
        let mut rng = rng();
        for (a, b) in INTERVALS {
            let scale = (0.5 * a.abs().min(b.abs()).powi(2) * f64::from(u8::from(a * b > 0.0))).exp();
            let weight = |x: f64| scale * (-0.5 * x * x).exp();
            let mass = integral(a, b, weight);
            let mean = integral(a, b, |x| x * weight(x)) / mass;
            let var = integral(a, b, |x| (x - mean).powi(2) * weight(x)) / mass;
            let n = 20_000;
            let draws: Vec<f64> = (0..n).map(|_| cut_normal(a, b, &mut rng)).collect();
            assert!(draws.iter().all(|x| *x >= a && *x <= b), "({a}, {b})");
            let m = draws.iter().sum::<f64>() / f64::from(n);
            assert!((m - mean).abs() < 4.5 * (var / f64::from(n)).sqrt(), "({a}, {b}): {m} vs {mean}");
            let v = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
            assert!((v / var - 1.0).abs() < 0.08, "({a}, {b}): {v} vs {var}");
        }
    }

    /// A mean or a variance that is not a number, or a mean that blew up, gives an answer, and not a number where it was none.
    #[test]
    fn chains_that_left_the_numbers_are_not_waited_for() {
        let inf = f64::INFINITY;
        let pieces = hdr();
        let mut rng = rng();
        let mut draw =
            |mean: f64, variance: f64| Pieces::new(&pieces, (variance, 0.05)).draw(mean, 0.9, &mut rng);
        for mean in [f64::NAN, inf, -inf] {
            assert!(!draw(mean, 0.1).is_finite(), "{mean}");
        }
        for variance in [f64::NAN, inf, -0.1] {
            assert!(draw(0.2, variance).is_nan(), "{variance}");
        }
        assert_eq!(draw(0.2, 0.0), 0.2);
        for mean in [1e40, -1e200, 1e308] {
            draw(mean, 0.1);
        }
        for (a, b) in
            [(f64::NAN, 1.0), (-inf, f64::NAN), (1.0, 1.0), (inf, inf), (1e200, inf), (-inf, -1e200)]
        {
            cut_normal(a, b, &mut rng);
        }
    }

    /// Kolmogorov–Smirnov of HDR's conditional against numerical integration, over means, spreads and measurements.
    #[test]
    fn hdr_conditionals_pass_kolmogorov_smirnov() {
        let pieces = hdr();
        let mut rng = rng();
        for (mean, r, beta, y) in [
            (0.4, 0.3, 0.05, 0.9),
            (0.4, 0.3, 0.05, 1.02),
            (0.9, 0.2, 0.05, 0.95),
            (0.1, 0.05, 0.05, 1.0),
            (-0.45, 0.1, 0.3, -0.8),
            (0.0, 1.0, 0.5, 0.0),
            (0.2, 0.02, 0.05, 1.0),
            (-0.9, 10.0, 0.05, -1.0),
        ] {
            let log_density = |x: f64| {
                let f = (2.0 * x).clamp(-1.0, 1.0);
                -0.5 * ((x - mean) / r).powi(2) - 0.5 * ((f - y) / beta).powi(2)
            };
            // The cumulative distribution on a grid that covers all the mass.
            let (low, high) = (mean - 9.0 * r, mean + 9.0 * r);
            let n = 200_000;
            let h = (high - low) / n as f64;
            let top =
                (0..n).map(|i| log_density(low + (i as f64 + 0.5) * h)).fold(f64::NEG_INFINITY, f64::max);
            let mut cdf = Vec::with_capacity(n + 1);
            cdf.push(0.0);
            for i in 0..n {
                cdf.push(cdf[i] + (log_density(low + (i as f64 + 0.5) * h) - top).exp());
            }
            let total = cdf[n];
            let cdf_at = |x: f64| {
                let t = ((x - low) / h).clamp(0.0, n as f64);
                let i = (t as usize).min(n - 1);
                (cdf[i] + (t - i as f64) * (cdf[i + 1] - cdf[i])) / total
            };
            let shared = Pieces::new(&pieces, (r * r, beta));
            let draws: Vec<f64> = (0..4000).map(|_| shared.draw(mean, y, &mut rng)).collect();
            let ks = ks_one_sample(&draws, cdf_at).unwrap();
            assert!(ks.p_value > 1e-3, "mean {mean}, r {r}, β {beta}, y {y}: {ks:?}");
        }
    }
}
