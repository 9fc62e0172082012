//! Multi-head attention a block of queries at a time: memory grows with the tokens, not with their square.
#![allow(unsafe_code)]

use super::gemm::{self, Product, TransposedProduct};
use super::layer_norm::exp_row;
use super::{round_up, scratch_stride};
use crate::buffer::Buffer;
use crate::par::{self, Shared};
use crate::simd::{Isa, math, simd_fn};
use std::sync::OnceLock;

/// Where head h, dimension i of token t of sample n lies: base + (n tokens + t) * token + h * head + i * element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strides {
    pub(crate) base: usize,
    pub(crate) token: usize,
    pub(crate) head: usize,
    pub(crate) element: usize,
}

/// One of queries, keys and values.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) strides: Strides,
    pub(crate) tokens: usize,
}

impl View<'_> {
    fn at(&self, n: usize, h: usize, token: usize) -> usize {
        let s = self.strides;
        s.base + (n * self.tokens + token) * s.token + h * s.head
    }
    /// Tokens first..first + rows of one head as rows of `out`.
    fn rows(&self, (n, h): (usize, usize), first: usize, dim: usize, out: &mut [f32], stride: usize) {
        for (i, row) in out.chunks_exact_mut(stride).enumerate() {
            let from = &self.values[self.at(n, h, first + i)..];
            if self.strides.element == 1 {
                row[..dim].copy_from_slice(&from[..dim]);
            } else {
                let from = from.iter().step_by(self.strides.element);
                row.iter_mut().zip(from).take(dim).for_each(|(to, x)| *to = *x);
            }
            row[dim..].fill(0.0);
        }
    }
    /// One head as a matrix (dim x tokens), packed as [`gemm::pack`] would.
    fn pack_transposed(&self, isa: Isa, (n, h): (usize, usize), dim: usize) -> Buffer {
        let (nr, element) = (isa.nr(), self.strides.element);
        let mut out = Buffer::take(round_up(self.tokens, nr) * dim);
        for (panel, part) in out.chunks_exact_mut(dim * nr).enumerate() {
            let used = nr.min(self.tokens - panel * nr);
            if used < nr {
                part.fill(0.0);
            }
            for t in 0..used {
                let from = self.values[self.at(n, h, panel * nr + t)..].iter().step_by(element);
                part[t..].iter_mut().step_by(nr).zip(from.take(dim)).for_each(|(to, x)| *to = *x);
            }
        }
        out
    }
    /// One head as a matrix (tokens x dim), packed as [`gemm::pack`] would.
    fn pack(&self, isa: Isa, (n, h): (usize, usize), dim: usize) -> Buffer {
        let (nr, element) = (isa.nr(), self.strides.element);
        let mut out = Buffer::take(self.tokens * round_up(dim, nr));
        for (panel, part) in out.chunks_exact_mut(self.tokens * nr).enumerate() {
            let used = nr.min(dim - panel * nr);
            for (t, row) in part.chunks_exact_mut(nr).enumerate() {
                let from = &self.values[self.at(n, h, t) + panel * nr * element..];
                if element == 1 {
                    row[..used].copy_from_slice(&from[..used]);
                } else {
                    row.iter_mut().zip(from.iter().step_by(element)).take(used).for_each(|(to, x)| *to = *x);
                }
                row[used..].fill(0.0);
            }
        }
        out
    }
}

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
}

impl Shape {
    fn scale(&self) -> f32 {
        (1.0 / (self.dim as f64).sqrt()) as f32
    }
}

/// Output [N][queries][heads * dim], and the logarithm of each softmax's denominator, [N][heads][queries].
pub(crate) fn forward(isa: Isa, s: Shape, q: View, k: View, v: View) -> (Buffer, Buffer) {
    let (t_q, t_k, dim) = (q.tokens, k.tokens, s.dim);
    let heads: Vec<(usize, usize)> = (0..s.batch * s.heads).map(|i| (i / s.heads, i % s.heads)).collect();
    let packs: Vec<OnceLock<(Buffer, Buffer)>> = heads.iter().map(|_| OnceLock::new()).collect();
    par::for_each(heads.len(), |i| {
        let _ = packs[i].set((k.pack_transposed(isa, heads[i], dim), v.pack(isa, heads[i], dim)));
    });
    let mut out = Buffer::take(s.batch * t_q * s.heads * dim);
    let mut logs = Buffer::take(s.batch * s.heads * t_q);
    let (out_shared, logs_shared) = (Shared::new(&mut out), Shared::new(&mut logs));
    let block = 4 * isa.mr();
    let blocks = t_q.div_ceil(block);
    let (q_stride, s_stride) = (scratch_stride(dim), scratch_stride(round_up(t_k, isa.nr())));
    let o_stride = scratch_stride(round_up(dim, isa.nr()));
    par::for_each(heads.len() * blocks, |job| {
        let (head, first) = (job / blocks, job % blocks * block);
        let rows = block.min(t_q - first);
        let (n, h) = heads[head];
        let Some((keys, values)) = packs[head].get() else { return };
        let mut queries = Buffer::take(rows * q_stride);
        q.rows((n, h), first, dim, &mut queries, q_stride);
        let (mut scores, mut sums) = (Buffer::take(rows * s_stride), Buffer::take(rows * o_stride));
        multiply(isa, (&queries, q_stride, rows), (keys, dim, t_k), (&mut scores, s_stride));
        let mut denominators = [0f32; 64];
        for r in 0..rows {
            let mut stats = [0f32; 2];
            let row = &mut scores[r * s_stride..][..t_k];
            // SAFETY: the row has `t_k` floats.
            unsafe { exp_row(isa, row.as_mut_ptr(), t_k, s.scale(), &mut stats) };
            denominators[r] = stats[1];
            // SAFETY: `logs` has a number for every query of every head; this query of this head is this job's.
            let log = unsafe { logs_shared.slice(head * t_q + first + r, 1) };
            log[0] = stats[0] * s.scale() + stats[1].ln();
        }
        multiply(isa, (&scores, s_stride, rows), (values, t_k, dim), (&mut sums, o_stride));
        for r in 0..rows {
            let at = ((n * t_q + first + r) * s.heads + h) * dim;
            // SAFETY: `out` has `dim` numbers for every query of every head; this query of this head is this job's.
            let to = unsafe { out_shared.slice(at, dim) };
            let factor = 1.0 / denominators[r];
            to.iter_mut().zip(&sums[r * o_stride..]).for_each(|(o, x)| *o = factor * x);
        }
    });
    (out, logs)
}

/// C = A B with B packed (inner x n); C has room for whole panels.
fn multiply(
    isa: Isa,
    (a, lda, rows): (&[f32], usize, usize),
    (b, inner, n): (&[f32], usize, usize),
    (c, ldc): (&mut [f32], usize),
) {
    let columns = round_up(n, isa.nr());
    assert!(rows > 0 && a.len() >= (rows - 1) * lda + inner, "A is too small");
    assert!(b.len() >= inner * columns, "B is too small");
    assert!(columns <= ldc && c.len() >= (rows - 1) * ldc + columns, "C is too small");
    let p = Product { a: a.as_ptr(), lda, rows, inner, b: b.as_ptr(), n, c: c.as_mut_ptr(), ldc };
    // SAFETY: the shapes fit, as asserted, and the borrow of C keeps it apart from A and B.
    unsafe { gemm::product(isa, &p) };
}

simd_fn! {
    /// From scores and dP to P = exp(scale s - log) and dS = P (dP - dot) scale, in place.
    ///
    /// # Safety
    /// `score` and `dp` are valid for reads and writes of `n` floats each and do not overlap.
    unsafe fn score_gradient<S>(score: *mut f32, dp: *mut f32, n: usize, constants: (f32, f32, f32)) {
        let (scale, log, dot) = constants;
        let (factor, log, dot) = (S::splat(scale), S::splat(-log), S::splat(dot));
        let mut i = 0;
        while i < n {
            let left = n - i;
            let p = math::exp::<S>(S::fma(S::load_up_to(score.add(i), left), factor, log));
            let d = S::mul(S::mul(p, S::sub(S::load_up_to(dp.add(i), left), dot)), factor);
            S::store_up_to(score.add(i), p, left);
            S::store_up_to(dp.add(i), d, left);
            i += S::LANES;
        }
    }
}

/// What the forward pass left for the backward one, and the gradient of its output.
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub(crate) out: &'a [f32],
    pub(crate) logs: &'a [f32],
    pub(crate) gradient: &'a [f32],
}

/// The gradients of queries, keys and values, written where their views say.
pub(crate) fn backward(
    isa: Isa,
    s: Shape,
    (q, k, v): (View, View, View),
    saved: Saved,
    out: [&mut [f32]; 3],
) {
    for (view, out) in [q, k, v].iter().zip(&out) {
        check_places(s, &[view], out.len());
    }
    let targets = out.map(Shared::new);
    // SAFETY: just checked, and each gradient has its own slice.
    unsafe { backward_into(isa, s, (q, k, v), saved, targets) };
}

/// As [`backward`], for the three gradients as parts of one buffer.
pub(crate) fn backward_joint(
    isa: Isa,
    s: Shape,
    (q, k, v): (View, View, View),
    saved: Saved,
    out: &mut [f32],
) {
    check_places(s, &[&q, &k, &v], out.len());
    let target = Shared::new(out);
    // SAFETY: just checked, for all three views at once.
    unsafe { backward_into(isa, s, (q, k, v), saved, [target; 3]) };
}

/// Asserts that the views, as places in one buffer of `len` floats, lie inside it and that no two heads share an element.
fn check_places(s: Shape, views: &[&View], len: usize) {
    let width = views.iter().map(|view| view.strides.token).max().unwrap_or(0);
    let mut taken = vec![false; width];
    for view in views {
        let Strides { base, token, head, element } = view.strides;
        assert!(token == width, "tokens of one buffer have one width");
        assert!(s.batch * view.tokens * token <= len, "the tokens lie inside the buffer");
        for place in (0..s.heads * s.dim).map(|i| base + i / s.dim * head + i % s.dim * element) {
            assert!(place < token && !taken[place], "each element of a token has one place");
            taken[place] = true;
        }
    }
}

/// # Safety
/// Each target covers its view's places ([`check_places`]), and no two heads share one, also between targets.
unsafe fn backward_into(
    isa: Isa,
    s: Shape,
    (q, k, v): (View, View, View),
    saved: Saved,
    targets: [Shared; 3],
) {
    par::for_each(s.batch * s.heads, |job| {
        let head = (job / s.heads, job % s.heads);
        // SAFETY: the caller promises the places, and this head of this sample is this job's.
        unsafe { backward_head(isa, s, head, (q, k, v), saved, targets) };
    });
}

/// One head of one sample: queries block by block, keys and values added up in a fixed order.
///
/// # Safety
/// Each target covers its view's places, and no other thread touches those of this head.
unsafe fn backward_head(
    isa: Isa,
    s: Shape,
    head: (usize, usize),
    (q, k, v): (View, View, View),
    saved: Saved,
    targets: [Shared; 3],
) {
    let (t_q, t_k, dim) = (q.tokens, k.tokens, s.dim);
    let padded = round_up(dim, isa.nr());
    let (d_stride, s_stride) = (scratch_stride(padded), scratch_stride(round_up(t_k, isa.nr())));
    let keys_t = k.pack_transposed(isa, head, dim);
    let values_t = v.pack_transposed(isa, head, dim);
    let keys = k.pack(isa, head, dim);
    let (mut dk, mut dv) = (Buffer::take(t_k * padded), Buffer::take(t_k * padded));
    let block = 4 * isa.mr();
    let take = |stride: usize| Buffer::take(block.min(t_q) * stride);
    let (mut queries, mut grads, mut dq) = (take(d_stride), take(d_stride), take(d_stride));
    let (mut scores, mut dp) = (take(s_stride), take(s_stride));
    let element = Strides { base: 0, token: s.heads * dim, head: dim, element: 1 };
    let gradient = View { values: saved.gradient, strides: element, tokens: t_q };
    for first in (0..t_q).step_by(block) {
        let rows = block.min(t_q - first);
        q.rows(head, first, dim, &mut queries[..rows * d_stride], d_stride);
        gradient.rows(head, first, dim, &mut grads[..rows * d_stride], d_stride);
        multiply(isa, (&queries, d_stride, rows), (&keys_t, dim, t_k), (&mut scores, s_stride));
        multiply(isa, (&grads, d_stride, rows), (&values_t, dim, t_k), (&mut dp, s_stride));
        for r in 0..rows {
            let at = ((head.0 * t_q + first + r) * s.heads + head.1) * dim;
            let dot: f64 =
                (0..dim).map(|i| f64::from(saved.out[at + i]) * f64::from(saved.gradient[at + i])).sum();
            let log = saved.logs[(head.0 * s.heads + head.1) * t_q + first + r];
            let (score, dp) = (&mut scores[r * s_stride..][..t_k], &mut dp[r * s_stride..][..t_k]);
            // SAFETY: both rows have `t_k` floats, and the borrows keep them apart.
            unsafe {
                score_gradient(isa, score.as_mut_ptr(), dp.as_mut_ptr(), t_k, (s.scale(), log, dot as f32));
            };
        }
        multiply(isa, (&dp, s_stride, rows), (&keys, t_k, dim), (&mut dq, d_stride));
        // SAFETY: the caller promises the places of this head.
        unsafe { write(targets[0], &q, head, first, &dq[..rows * d_stride], (d_stride, dim)) };
        for (a, b, c) in [(&dp, &queries, &mut dk), (&scores, &grads, &mut dv)] {
            let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
            let p = TransposedProduct {
                a,
                lda: s_stride,
                m: t_k,
                inner: rows,
                b,
                ldb: d_stride,
                n: padded,
                c,
                ldc: padded,
                accumulate: first > 0,
            };
            // SAFETY: `a` has `rows` rows of `s_stride` >= `t_k` floats, `b` as many of `d_stride` >= `padded`, and `c`, a buffer of
            // its own, has `t_k` of `padded`.
            unsafe { gemm::transposed_product(isa, &p) };
        }
    }
    // SAFETY: the caller promises the places of this head.
    unsafe {
        write(targets[1], &k, head, 0, &dk[..t_k * padded], (padded, dim));
        write(targets[2], &v, head, 0, &dv[..t_k * padded], (padded, dim));
    }
}

/// Writes rows of one head's gradient to where the view has its tokens from `first` on.
///
/// # Safety
/// The target covers the places of these tokens, and no other thread touches those of this head.
unsafe fn write(
    target: Shared,
    view: &View,
    (n, h): (usize, usize),
    first: usize,
    rows: &[f32],
    (stride, dim): (usize, usize),
) {
    for (i, row) in rows.chunks_exact(stride).enumerate() {
        let at = view.at(n, h, first + i);
        for (j, value) in row.iter().take(dim).enumerate() {
            // SAFETY: the caller promises this place.
            unsafe { *target.at(at + j * view.strides.element) = *value };
        }
    }
}
