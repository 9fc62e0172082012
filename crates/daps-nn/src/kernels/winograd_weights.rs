//! Winograd's transform of 3x3 weights, and of their gradient back.
#![allow(unsafe_code)]
// Rows and columns of small matrices: indices say it best.
#![allow(clippy::needless_range_loop)]

use super::round_up;
use super::winograd::POINTS;
use crate::buffer::Buffer;
use crate::par::{self, Shared};
use crate::simd::{Isa, Simd, simd_fn};

/// Which convolution the weights (out x in x 3 x 3) are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The layer itself.
    Forward,
    /// The gradient of its input: weights turned by 180 degrees, in and out swapped.
    Backward,
}

/// G g, one dimension of the weight transform.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn weight_1d<S: Simd>(g: [S::F; 3]) -> [S::F; 6] {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        let (sixth, c24) = (S::splat(1.0 / 6.0), S::splat(1.0 / 24.0));
        let even = S::mul(S::splat(-1.0 / 6.0), S::add(g[0], g[2]));
        let odd = S::mul(sixth, g[1]);
        let even2 = S::fma(c24, g[0], S::mul(sixth, g[2]));
        let odd2 = S::mul(S::splat(1.0 / 12.0), g[1]);
        [
            S::mul(S::splat(0.25), g[0]),
            S::sub(even, odd),
            S::add(even, odd),
            S::add(even2, odd2),
            S::sub(even2, odd2),
            g[2],
        ]
    }
}

/// G^T m, one dimension of the gradient's way back.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn weight_1d_transposed<S: Simd>(m: [S::F; 6]) -> [S::F; 3] {
    // SAFETY: the caller promises the instruction set, and vectors of it are all that is used.
    unsafe {
        let (sixth, c12, c24) = (S::splat(1.0 / 6.0), S::splat(1.0 / 12.0), S::splat(1.0 / 24.0));
        let (s12, d12) = (S::add(m[1], m[2]), S::sub(m[2], m[1]));
        let (s34, d34) = (S::add(m[3], m[4]), S::sub(m[3], m[4]));
        [
            S::fma(S::splat(0.25), m[0], S::fma(c24, s34, S::mul(S::splat(-1.0 / 6.0), s12))),
            S::fma(c12, d34, S::mul(sixth, d12)),
            S::add(m[5], S::mul(sixth, S::sub(s34, s12))),
        ]
    }
}

simd_fn! {
    /// Transforms one panel-wide row of 3x3 kernels: `taps` is [9][NR], point p goes to `out + p * point_stride`.
    ///
    /// # Safety
    /// `taps` is valid for reads of 9 NR floats, `out` for writes of NR floats at each of 36 points, `point_stride` apart.
    unsafe fn transform_row<S>(taps: *const f32, out: *mut f32, point_stride: usize) {
        for half in 0..2 {
            let l = half * S::LANES;
            let mut rows = [[S::splat(0.0); 3]; 6];
            for s in 0..3 {
                let mut g = [S::splat(0.0); 3];
                for r in 0..3 {
                    g[r] = S::load(taps.add((r * 3 + s) * S::NR + l));
                }
                let g = weight_1d::<S>(g);
                for r in 0..6 {
                    rows[r][s] = g[r];
                }
            }
            for r in 0..6 {
                let g = weight_1d::<S>(rows[r]);
                for s in 0..6 {
                    S::store(out.add((r * 6 + s) * point_stride + l), g[s]);
                }
            }
        }
    }
}

/// Transforms `weight` (out x in x 3 x 3) into 36 packed matrices: [36][out / NR][in][NR].
/// With [`Direction::Backward`] `in` and `out` change places in the result.
pub(crate) fn transform(isa: Isa, weight: &[f32], c_out: usize, c_in: usize, direction: Direction) -> Buffer {
    let nr = isa.nr();
    // Strides of the panel's columns and of its rows in the weights.
    let (columns, rows, column_stride, row_stride) = match direction {
        Direction::Forward => (c_out, c_in, c_in * 9, 9),
        Direction::Backward => (c_in, c_out, 9, c_in * 9),
    };
    let padded = round_up(columns, nr);
    let mut out = Buffer::take(POINTS * rows * padded);
    let shared = Shared::new(&mut out);
    let row_chunk = 32;
    let row_chunks = rows.div_ceil(row_chunk);
    par::for_each(padded / nr * row_chunks, |job| {
        let (panel, chunk) = (job / row_chunks, job % row_chunks);
        let mut taps = [0f32; 9 * 32];
        let used = (columns - panel * nr).min(nr);
        for row in chunk * row_chunk..((chunk + 1) * row_chunk).min(rows) {
            for l in 0..used {
                let from = &weight[(panel * nr + l) * column_stride + row * row_stride..][..9];
                for (tap, value) in from.iter().enumerate() {
                    let tap = if direction == Direction::Forward { tap } else { 8 - tap };
                    taps[tap * nr + l] = *value;
                }
            }
            // SAFETY: `taps` has 9 * 32 floats and NR is at most 32. `out` has 36 points of `rows` x `padded`, and NR floats of this row
            // and panel are this job's.
            unsafe {
                let to = shared.at((panel * rows + row) * nr);
                transform_row(isa, taps.as_ptr(), to, rows * padded);
            }
        }
    });
    out
}

simd_fn! {
    /// Brings one vector of output channels of the transformed gradient back to 3x3: `out` is [9][LANES].
    ///
    /// # Safety
    /// `gradient` is valid for reads of a vector at each of 36 points, `point_stride` apart, `out` for writes of 9 vectors.
    unsafe fn inverse_row<S>(gradient: *const f32, point_stride: usize, out: *mut f32) {
        let mut rows = [[S::splat(0.0); 6]; 3];
        for s in 0..6 {
            let mut m = [S::splat(0.0); 6];
            for r in 0..6 {
                m[r] = S::load(gradient.add((r * 6 + s) * point_stride));
            }
            let m = weight_1d_transposed::<S>(m);
            for r in 0..3 {
                rows[r][s] = m[r];
            }
        }
        for r in 0..3 {
            let m = weight_1d_transposed::<S>(rows[r]);
            for s in 0..3 {
                S::store(out.add((r * 3 + s) * S::LANES), m[s]);
            }
        }
    }
}

/// Input channels that [`inverse`] takes at a time.
pub(crate) const INVERSE_CHANNELS: usize = 8;

/// Brings input channels start..end (at most [`INVERSE_CHANNELS`]) of the transformed gradient back to 3x3.
///
/// # Safety
/// `gradient` points at channel `start`: at each of 36 points, `point_stride` apart, it is valid for reads of `end - start` rows of
/// `c_out` floats, padded to whole panels. `start..end` is inside `c_in`. `out` covers out x in x 3 x 3, and no other thread
/// touches these input channels.
pub(crate) unsafe fn inverse(
    isa: Isa,
    (gradient, point_stride): (*const f32, usize),
    (c_out, c_in): (usize, usize),
    (start, end): (usize, usize),
    out: Shared,
) {
    let lanes = isa.nr() / 2;
    let padded = round_up(c_out, isa.nr());
    for k in (0..c_out).step_by(lanes) {
        // [lane][channel][9], so that each output channel gets one contiguous write.
        let mut tile = [0f32; 16 * INVERSE_CHANNELS * 9];
        for c in 0..end - start {
            let mut taps = [0f32; 9 * 16];
            // SAFETY: the caller promises this row, in which a vector follows column k; `taps` has room for 9 vectors of 16.
            unsafe { inverse_row(isa, gradient.add(c * padded + k), point_stride, taps.as_mut_ptr()) };
            for lane in 0..lanes {
                for tap in 0..9 {
                    tile[(lane * INVERSE_CHANNELS + c) * 9 + tap] = taps[tap * lanes + lane];
                }
            }
        }
        for lane in 0..lanes.min(c_out - k) {
            let from = &tile[lane * INVERSE_CHANNELS * 9..][..(end - start) * 9];
            // SAFETY: output channel k + lane and these input channels are inside `out`, and no other thread touches them.
            let to = unsafe { out.slice(((k + lane) * c_in + start) * 9, from.len()) };
            to.copy_from_slice(from);
        }
    }
}
