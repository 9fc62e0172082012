//! Doubling and halving the size of a feature map.

use crate::error::{Error, Result};
use crate::feature_map::{Dims, FeatureMap};
use crate::kernels::{elementwise, fir};
use candle_core::Tensor;

fn check_even(what: &'static str, d: Dims) -> Result<()> {
    if d.height.is_multiple_of(2) && d.width.is_multiple_of(2) {
        return Ok(());
    }
    Err(Error::Shape { what, expected: "even height and width".to_string(), got: d.nchw() })
}

/// The filter divided by its sum; it must have an even number of taps, so that sizes halve and double exactly.
fn normalised(filter: &[f32]) -> Result<Vec<f32>> {
    let sum: f32 = filter.iter().sum();
    if filter.is_empty() || !filter.len().is_multiple_of(2) || sum == 0.0 || !sum.is_finite() {
        let expected = "an even number of taps whose sum is not zero".to_string();
        return Err(Error::Value { what: "resampling filter", expected, got: filter.len() });
    }
    Ok(filter.iter().map(|f| f / sum).collect())
}

/// The outer product of the filter with itself as a 1 x 1 x k x k kernel.
fn kernel(filter: &[f32], like: &Tensor) -> Result<Tensor> {
    let k = filter.len();
    let values: Vec<f32> = filter.iter().flat_map(|a| filter.iter().map(move |b| a * b)).collect();
    Ok(Tensor::from_vec(values, (1, 1, k, k), like.device())?)
}

impl FeatureMap {
    /// Every pixel twice in both directions.
    pub fn upsample_nearest(&self) -> Result<Self> {
        let d = self.dims();
        let up = d.with_size(2 * d.height, 2 * d.width);
        if !self.is_host() {
            let x = self.tensor("upsampling")?;
            // Not candle's own nearest upsampling, whose gradient is wrong.
            let x = x.reshape((d.batch * d.channels, d.height, 1, d.width, 1))?;
            let x = x.broadcast_as((d.batch * d.channels, d.height, 2, d.width, 2))?.contiguous()?;
            return Self::device(x.reshape((d.batch, d.channels, up.height, up.width))?);
        }
        let values = elementwise::upsample(self.data("upsampling")?, d, 1.0);
        self.unary(up, values, move |g| Ok(elementwise::sum_squares(&g, up, 1.0)))
    }

    /// Averages of 2x2 squares; both sides must be even.
    pub fn average_pool(&self) -> Result<Self> {
        let d = self.dims();
        check_even("average pool input", d)?;
        let down = d.with_size(d.height / 2, d.width / 2);
        if !self.is_host() {
            let x = self.tensor("average pool")?;
            let x = x.reshape((d.batch * d.channels, down.height, 2, down.width, 2))?;
            let x = (x.sum_keepdim((2, 4))? * 0.25)?;
            return Self::device(x.reshape((d.batch, d.channels, down.height, down.width))?);
        }
        let values = elementwise::sum_squares(self.data("average pool")?, d, 0.25);
        self.unary(down, values, move |g| Ok(elementwise::upsample(&g, down, 0.25)))
    }

    /// Halves the size with a separable filter such as [1, 3, 3, 1], which is divided by its sum; [1, 1] is the
    /// average pool. Both sides must be even.
    pub fn downsample_fir(&self, filter: &[f32]) -> Result<Self> {
        let (d, filter) = (self.dims(), normalised(filter)?);
        check_even("filtered down-sampling input", d)?;
        let down = d.with_size(d.height / 2, d.width / 2);
        if !self.is_host() {
            let x = self.tensor("filtered down-sampling")?;
            let planes = x.reshape((d.batch * d.channels, 1, d.height, d.width))?;
            let y = planes.conv2d(&kernel(&filter, x)?, (filter.len() - 1) / 2, 2, 1, 1)?;
            return Self::device(y.reshape((d.batch, d.channels, down.height, down.width))?);
        }
        let values = fir::down(self.data("filtered down-sampling")?, d, &filter, 1.0);
        self.unary(down, values, move |g| Ok(fir::up(&g, down, &filter, 1.0)))
    }

    /// Doubles the size with a separable filter such as [1, 3, 3, 1], which is divided by half its sum; [1, 1]
    /// repeats every pixel.
    pub fn upsample_fir(&self, filter: &[f32]) -> Result<Self> {
        let (d, filter) = (self.dims(), normalised(filter)?);
        let up = d.with_size(2 * d.height, 2 * d.width);
        if !self.is_host() {
            let x = self.tensor("filtered up-sampling")?;
            let planes = x.reshape((d.batch * d.channels, 1, d.height, d.width))?;
            let y =
                planes.conv_transpose2d(&(kernel(&filter, x)? * 4.0)?, (filter.len() - 1) / 2, 0, 2, 1)?;
            return Self::device(y.reshape((d.batch, d.channels, up.height, up.width))?);
        }
        let values = fir::up(self.data("filtered up-sampling")?, d, &filter, 4.0);
        self.unary(up, values, move |g| Ok(fir::down(&g, up, &filter, 4.0)))
    }
}
