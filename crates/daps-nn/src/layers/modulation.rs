//! Channels scaled and shifted by one vector per sample, with SiLU: what a norm does with a noise level, without the norm.

use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::feature_map::{Dims, FeatureMap};
use crate::kernels::norm::{self, Affine, Stats};
use crate::kernels::winograd_conv::Source;
use crate::simd::Isa;
use crate::tape::{self, Grads, Wants};

impl FeatureMap {
    /// silu(self * (1 + scale) + shift), with one vector per sample in `rows`, N x 2C: the scales, then the shifts.
    pub fn modulate_silu(&self, rows: &FeatureMap) -> Result<Self> {
        let dims = self.dims();
        let expected = Dims { height: 1, width: 1, channels: 2 * dims.channels, ..dims };
        if rows.dims() != expected {
            let expected = format!("{:?}", expected.nchw());
            return Err(Error::Shape { what: "scale and shift", expected, got: rows.dims().nchw() });
        }
        if !self.is_host() {
            return self.modulate_with_candle(rows);
        }
        let (isa, x) = (Isa::active(), self.data("scale and shift")?.clone());
        let affine = affine(rows.data("scale and shift")?, dims);
        let values = norm::forward(isa, dims, &[source(&x, dims)], &affine, true);
        let tracks = [self.track(), rows.track()];
        let track = tape::record(&tracks, &[], dims.len(), move |mut gradient: Buffer, wants: &Wants| {
            let around = (&plain(dims), &affine, true);
            let sums = norm::backward_sums(isa, dims, &[source(&x, dims)], around, &mut gradient);
            let dx = wants.inputs[0].then(|| {
                let slope = Affine { a: affine.a.clone(), b: vec![0.0; affine.b.len()] };
                norm::forward(isa, dims, &[source(&gradient, dims)], &slope, false)
            });
            let drows = wants.inputs[1].then(|| {
                let mut rows = Buffer::take(2 * dims.batch * dims.channels);
                let of = sums.normalised.chunks(dims.channels).zip(sums.plain.chunks(dims.channels));
                for (row, (scale, shift)) in rows.chunks_exact_mut(2 * dims.channels).zip(of) {
                    let values = scale.iter().chain(shift);
                    row.iter_mut().zip(values).for_each(|(out, v)| *out = *v as f32);
                }
                rows
            });
            Ok(Grads { inputs: vec![dx, drows], params: vec![] })
        })?;
        Ok(Self::host(dims, values, track))
    }

    fn modulate_with_candle(&self, rows: &FeatureMap) -> Result<Self> {
        let (x, rows, c) =
            (self.tensor("scale and shift")?, rows.tensor("scale and shift")?, self.channels());
        let (scale, shift) = (rows.narrow(1, 0, c)?, rows.narrow(1, c, c)?);
        Self::device(x.broadcast_mul(&(scale + 1.0)?)?.broadcast_add(&shift)?.silu()?)
    }
}

fn source(values: &[f32], dims: Dims) -> Source<'_> {
    Source { values, channels: dims.channels }
}

/// The map of every sample and channel.
fn affine(rows: &[f32], dims: Dims) -> Affine {
    let each = rows.chunks_exact(2 * dims.channels).map(|row| row.split_at(dims.channels));
    let a = each.clone().flat_map(|(scale, _)| scale.iter().map(|s| 1.0 + s)).collect();
    Affine { a, b: each.flat_map(|(_, shift)| shift.iter().copied()).collect() }
}

/// Statistics of a norm that changes nothing.
fn plain(dims: Dims) -> Stats {
    let each = dims.batch * dims.channels;
    Stats { mean: vec![0.0; each], rstd: vec![1.0; each], groups: dims.channels }
}
