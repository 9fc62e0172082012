//! Space to depth at a network's border: an image of large pixels, each with the channels of a patch.
//!
//! The order is that of PyTorch's `pixel_unshuffle`: pixel (i, j) of a patch of channel c becomes channel
//! c p² + i p + j. A public implementation runs such a network as `pixel_shuffle(net(pixel_unshuffle(x, p), …), p)`.

use candle_core::{Result, Tensor};

/// `[n, c, h, w]` to `[n, c p², h/p, w/p]`.
pub(crate) fn unshuffle(x: &Tensor, p: usize) -> Result<Tensor> {
    if p == 1 {
        return Ok(x.clone());
    }
    let (n, c, h, w) = x.dims4()?;
    let split = x.reshape(&[n, c, h / p, p, w / p, p])?;
    split.permute([0, 1, 3, 5, 2, 4])?.reshape((n, c * p * p, h / p, w / p))
}

/// `[n, c p², h, w]` to `[n, c, h p, w p]`.
pub(crate) fn shuffle(x: &Tensor, p: usize) -> Result<Tensor> {
    if p == 1 {
        return Ok(x.clone());
    }
    let (n, c, h, w) = x.dims4()?;
    let split = x.reshape(&[n, c / (p * p), p, p, h, w])?;
    split.permute([0, 1, 4, 2, 5, 3])?.reshape((n, c / (p * p), h * p, w * p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, IndexOp};

    #[test]
    fn the_order_is_pytorchs_and_shuffle_is_the_inverse() {
        let (n, c, h, w) = (2, 3, 6, 4);
        let x = Tensor::arange(0f32, (n * c * h * w) as f32, &Device::Cpu).unwrap();
        let x = x.reshape((n, c, h, w)).unwrap();
        for p in [1, 2] {
            let small = unshuffle(&x, p).unwrap();
            assert_eq!(small.dims(), [n, c * p * p, h / p, w / p]);
            let at = |t: &Tensor, i: [usize; 4]| {
                t.i((i[0], i[1], i[2], i[3])).unwrap().to_scalar::<f32>().unwrap()
            };
            for (channel, i, j) in [(2, 0, 1), (1, 1, 0), (0, 1, 1)].map(|(c, i, j)| (c, i % p, j % p)) {
                let inside = at(&small, [1, channel * p * p + i * p + j, 1, 1]);
                assert_eq!(inside, at(&x, [1, channel, p + i, p + j]));
            }
            let back = shuffle(&small, p).unwrap();
            assert_eq!(
                back.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
                x.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            );
        }
    }
}
