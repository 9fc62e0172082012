//! Matrix products on one thread: rows times packed panels, and the transposed product of weight gradients.
//!
//! Every element of a product is one sum over the inner dimension in ascending order, so that neither the blocking
//! of the rows nor the thread that runs them changes a bit.
#![allow(unsafe_code)]
// Sums stay in registers only when the loops over rows unroll, which plain indices make sure of.
#![allow(clippy::needless_range_loop)]

use super::round_up;
use crate::buffer::Buffer;
use crate::par;
use crate::simd::{Isa, Simd, simd_fn};

/// C (rows x n) = A (rows x inner) * B, with B packed by [`pack`]. Rows of C have room for whole vectors; what comes
/// to lie beyond column n is unspecified.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) b: *const f32,
    pub(crate) n: usize,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
}

/// C (m x n) = or += A^T B with A (inner x m) and B (inner x n) in rows; n is a multiple of the panel width.
#[derive(Clone, Copy)]
pub(crate) struct TransposedProduct {
    pub(crate) a: *const f32,
    pub(crate) lda: usize,
    pub(crate) m: usize,
    pub(crate) inner: usize,
    pub(crate) b: *const f32,
    pub(crate) ldb: usize,
    pub(crate) n: usize,
    pub(crate) c: *mut f32,
    pub(crate) ldc: usize,
    pub(crate) accumulate: bool,
}

/// A block of L + H rows and W vectors of C in registers. In two parts, because the compiler unrolls loops of seven
/// rows but not of fourteen, and only unrolled sums stay in registers.
///
/// # Safety
/// The machine has the instruction set. `a` is valid for reads of `inner` floats in each of L + H rows that are `lda` apart,
/// `b` for reads of W vectors in each of `inner` rows that are `NR` apart, `c` for writes of W vectors in each of L + H rows that
/// are `ldc` apart. C overlaps neither A nor B.
#[inline(always)]
unsafe fn block<S: Simd, const W: usize, const L: usize, const H: usize>(
    p: &Product,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
) {
    // SAFETY: the caller promises every row of A, B and C up to these bounds, and the instruction set.
    unsafe {
        let (lda, ldc, inner) = (p.lda, p.ldc, p.inner);
        let mut low = [[S::splat(0.0); W]; L];
        let mut high = [[S::splat(0.0); W]; H];
        // Wrapping, because without rows there the address may lie beyond the end of A.
        let a_high = a.wrapping_add(L * lda);
        for k in 0..inner {
            let mut row = [S::splat(0.0); W];
            for w in 0..W {
                row[w] = S::load(b.add(k * S::NR + w * S::LANES));
            }
            for r in 0..L {
                let x = S::splat(*a.add(r * lda + k));
                for w in 0..W {
                    low[r][w] = S::fma(x, row[w], low[r][w]);
                }
            }
            for r in 0..H {
                let x = S::splat(*a_high.add(r * lda + k));
                for w in 0..W {
                    high[r][w] = S::fma(x, row[w], high[r][w]);
                }
            }
        }
        for w in 0..W {
            for r in 0..L {
                S::store(c.add(r * ldc + w * S::LANES), low[r][w]);
            }
            for r in 0..H {
                S::store(c.add((L + r) * ldc + w * S::LANES), high[r][w]);
            }
        }
    }
}

/// Calls [`block`] with the constant number of rows that `rows` asks for, at most `S::MR`.
///
/// # Safety
/// As for [`block`], with `rows` rows and W at most 2; `rows` is at least 1 and at most `S::MR`.
#[inline(always)]
unsafe fn rows_block<S: Simd, const W: usize>(
    p: &Product,
    rows: usize,
    a: *const f32,
    b: *const f32,
    c: *mut f32,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        match rows {
            1 => block::<S, W, 1, 0>(p, a, b, c),
            2 => block::<S, W, 2, 0>(p, a, b, c),
            3 => block::<S, W, 3, 0>(p, a, b, c),
            4 => block::<S, W, 4, 0>(p, a, b, c),
            5 if S::MR >= 5 => block::<S, W, 5, 0>(p, a, b, c),
            6 if S::MR >= 6 => block::<S, W, 6, 0>(p, a, b, c),
            7 if S::MR >= 7 => block::<S, W, 7, 0>(p, a, b, c),
            8 if S::MR >= 8 => block::<S, W, 7, 1>(p, a, b, c),
            9 if S::MR >= 9 => block::<S, W, 7, 2>(p, a, b, c),
            10 if S::MR >= 10 => block::<S, W, 7, 3>(p, a, b, c),
            11 if S::MR >= 11 => block::<S, W, 7, 4>(p, a, b, c),
            12 if S::MR >= 12 => block::<S, W, 7, 5>(p, a, b, c),
            13 if S::MR >= 13 => block::<S, W, 7, 6>(p, a, b, c),
            14 if S::MR >= 14 => block::<S, W, 7, 7>(p, a, b, c),
            _ => unreachable!("more rows than the micro-kernel has"),
        }
    }
}

simd_fn! {
    /// C = A B
    ///
    /// # Safety
    /// `a` is valid for reads of `inner` floats in each of `rows` rows that are `lda` apart, `b` for reads of
    /// `inner * round_up(n, NR)` floats, `c` for writes of `round_up(n, LANES)` floats in each of `rows` rows that are `ldc` apart.
    /// C overlaps neither A nor B, and no other thread touches it.
    pub(crate) unsafe fn product<S>(p: &Product) {
        // Equal shares, so that no block is left with one row.
        let blocks = p.rows.div_ceil(S::MR);
        let (share, longer) = (p.rows / blocks.max(1), p.rows % blocks.max(1));
        let mut n = 0;
        while n < p.n {
            let panel = p.b.add(n * p.inner);
            let mut r = 0;
            for i in 0..blocks {
                let rows = share + usize::from(i < longer);
                let (a, c) = (p.a.add(r * p.lda), p.c.add(r * p.ldc + n));
                if p.n - n > S::LANES {
                    rows_block::<S, 2>(p, rows, a, panel, c);
                } else {
                    rows_block::<S, 1>(p, rows, a, panel, c);
                }
                r += rows;
            }
            n += S::NR;
        }
    }
}

/// An `R` x NR block of A^T B in registers.
///
/// # Safety
/// The machine has the instruction set. `a` is valid for reads of R floats and `b` of `NR` floats in each of `inner` rows that
/// are `lda` and `ldb` apart, `c` for reads and writes of `NR` floats in each of R rows that are `ldc` apart. C overlaps
/// neither A nor B.
#[inline(always)]
unsafe fn block_t<S: Simd, const R: usize>(p: &TransposedProduct, a: *const f32, b: *const f32, c: *mut f32) {
    // SAFETY: the caller promises every row of A, B and C up to these bounds, and the instruction set.
    unsafe {
        let (lda, ldb, ldc, inner) = (p.lda, p.ldb, p.ldc, p.inner);
        let mut acc = [[S::splat(0.0); 2]; R];
        if p.accumulate {
            for r in 0..R {
                acc[r] = [S::load(c.add(r * ldc)), S::load(c.add(r * ldc + S::LANES))];
            }
        }
        for t in 0..inner {
            let b0 = S::load(b.add(t * ldb));
            let b1 = S::load(b.add(t * ldb + S::LANES));
            for r in 0..R {
                let x = S::splat(*a.add(t * lda + r));
                acc[r][0] = S::fma(x, b0, acc[r][0]);
                acc[r][1] = S::fma(x, b1, acc[r][1]);
            }
        }
        for r in 0..R {
            S::store(c.add(r * ldc), acc[r][0]);
            S::store(c.add(r * ldc + S::LANES), acc[r][1]);
        }
    }
}

simd_fn! {
    /// C = A^T B, or C += A^T B
    ///
    /// # Safety
    /// `n` is a multiple of `NR`. `a` is valid for reads of `m` floats and `b` of `n` floats in each of `inner` rows that are `lda` and
    /// `ldb` apart, `c` for writes, and for reads if it accumulates, of `n` floats in each of `m` rows that are `ldc` apart. C
    /// overlaps neither A nor B, and no other thread touches it.
    pub(crate) unsafe fn transposed_product<S>(p: &TransposedProduct) {
        let mut n = 0;
        while n < p.n {
            // Wrapping, because without an inner dimension A and B may be empty.
            let b = p.b.wrapping_add(n);
            let mut r = 0;
            while r < p.m {
                let (a, c) = (p.a.wrapping_add(r), p.c.add(r * p.ldc + n));
                let rows = (p.m - r).min(S::MT);
                match rows {
                    1 => block_t::<S, 1>(p, a, b, c),
                    2 => block_t::<S, 2>(p, a, b, c),
                    3 => block_t::<S, 3>(p, a, b, c),
                    4 => block_t::<S, 4>(p, a, b, c),
                    5 if S::MT >= 5 => block_t::<S, 5>(p, a, b, c),
                    6 if S::MT >= 6 => block_t::<S, 6>(p, a, b, c),
                    7 if S::MT >= 7 => block_t::<S, 7>(p, a, b, c),
                    _ => block_t::<S, 8>(p, a, b, c),
                }
                r += rows;
            }
            n += S::NR;
        }
    }
}

/// Packs B (inner x n) into panels: [n / NR][inner][NR], padded with zeros. The inner dimension is `outer` times `c`, and
/// the element at (o c + i, column) is given as a function of o, i and the column.
pub(crate) fn pack(
    isa: Isa,
    (outer, c): (usize, usize),
    n: usize,
    element: impl Fn(usize, usize, usize) -> f32 + Send + Sync,
) -> Buffer {
    let (nr, inner) = (isa.nr(), outer * c);
    let mut packed = Buffer::take(inner * round_up(n, nr));
    let out = par::Shared::new(&mut packed);
    par::for_each(n.div_ceil(nr), |panel| {
        // SAFETY: `packed` has `inner * nr` floats for each panel, and this one is this job's.
        let part = unsafe { out.slice(panel * inner * nr, inner * nr) };
        let used = nr.min(n - panel * nr);
        if used < nr {
            part.fill(0.0);
        }
        for o in 0..outer {
            let rows = &mut part[o * c * nr..][..c * nr];
            for j in 0..used {
                for (i, row) in rows.chunks_exact_mut(nr).enumerate() {
                    row[j] = element(o, i, panel * nr + j);
                }
            }
        }
    });
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, normal};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn products_agree_with_f64(rows in 1usize..40, inner in 0usize..70, n in 1usize..70, seed in 0u64..1000) {
            let (a, b) = (normal(rows * inner, seed), normal(inner * n, seed + 1));
            let mut expected = vec![0f64; rows * n];
            for r in 0..rows { for j in 0..n { for k in 0..inner {
                expected[r * n + j] += f64::from(a[r * inner + k]) * f64::from(b[k * n + j]);
            } } }
            for isa in Isa::available() {
                let packed = pack(isa, (1, inner), n, |_, k, j| b[k * n + j]);
                let np = round_up(n, isa.nr());
                let mut c = vec![f32::NAN; rows * np];
                let p = Product { a: a.as_ptr(), lda: inner, rows, inner, b: packed.as_ptr(), n, c: c.as_mut_ptr(), ldc: np };
                // SAFETY: A is rows x inner, B packed, C rows x np, each in a buffer of its own.
                unsafe { product(isa, &p) };
                let got: Vec<f32> = (0..rows * n).map(|i| c[i / n * np + i % n]).collect();
                assert_close(&got, &expected, 1e-5);

                let mut at = vec![0f32; inner * rows];
                for r in 0..rows { for k in 0..inner { at[k * rows + r] = a[r * inner + k]; } }
                let mut bp = vec![0f32; inner * np];
                for k in 0..inner { bp[k * np..][..n].copy_from_slice(&b[k * n..][..n]); }
                let mut ct = vec![1f32; rows * np];
                let t = TransposedProduct { a: at.as_ptr(), lda: rows, m: rows, inner, b: bp.as_ptr(), ldb: np, n: np,
                    c: ct.as_mut_ptr(), ldc: np, accumulate: true };
                // SAFETY: A is inner x rows, B inner x np, C rows x np, each in a buffer of its own.
                unsafe { transposed_product(isa, &t) };
                let got: Vec<f32> = (0..rows * n).map(|i| ct[i / n * np + i % n] - 1.0).collect();
                assert_close(&got, &expected, 1e-5);
            }
        }
    }
}
