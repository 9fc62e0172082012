//! One picture as bytes of the network's shape.

use daps_files::on_white;
use image::DynamicImage;
use image::imageops::FilterType;

use super::Fit;
use super::adapted::Seen;
use super::crops::Whole;

/// Decodes a picture (turned upright, transparency laid on white, of an animation the first frame) and makes it fit; tells what the
/// file showed before.
pub(super) fn decode(bytes: &[u8], shape: [usize; 3], fit: Fit) -> Result<(Vec<u8>, Seen), String> {
    let (picture, seen) = opened(bytes)?;
    Ok((fitted(&picture, shape, fit)?, seen))
}

/// Decodes a picture and leaves it as large as it is.
pub(super) fn whole(bytes: &[u8], channels: usize) -> Result<(Whole, Seen), String> {
    let (picture, seen) = opened(bytes)?;
    let planes = fitted(&picture, [channels, seen.height, seen.width], Fit::Pad)?;
    Ok((Whole { height: seen.height, width: seen.width, planes }, seen))
}

fn opened(bytes: &[u8]) -> Result<(DynamicImage, Seen), String> {
    let found = daps_files::open(bytes).map_err(|e| e.to_string())?;
    let mut picture = found.pixels;
    let grey = !picture.color().has_color();
    let mut transparent = false;
    if picture.color().has_alpha() {
        let (laid, seen_through) = on_white(&picture);
        (picture, transparent) = (DynamicImage::ImageRgb32F(laid), seen_through);
    }
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let seen = Seen { width, height, grey, transparent, animated: found.is_animated };
    Ok((picture, seen))
}

/// Bytes, channel by channel.
pub(super) fn fitted(picture: &DynamicImage, shape: [usize; 3], fit: Fit) -> Result<Vec<u8>, String> {
    let [channels, height, width] = shape;
    let (w, h) = (picture.width() as usize, picture.height() as usize);
    if fit == Fit::Pad && (w > width || h > height) {
        return Err(format!("is {w}x{h}, which does not fit into {width}x{height}"));
    }
    let resized;
    let picture = if fit == Fit::Crop && (w, h) != (width, height) {
        resized = picture.resize_to_fill(width as u32, height as u32, FilterType::Lanczos3);
        &resized
    } else {
        picture
    };
    let interleaved =
        if channels == 1 { picture.to_luma8().into_raw() } else { picture.to_rgb8().into_raw() };
    let (w, h) = (picture.width() as usize, picture.height() as usize);
    Ok(padded(&interleaved, (channels, h, w), (height, width)))
}

/// Interleaved bytes to planes, in the middle of a black rectangle.
fn padded(
    interleaved: &[u8],
    (channels, h, w): (usize, usize, usize),
    (height, width): (usize, usize),
) -> Vec<u8> {
    let (top, left) = ((height - h) / 2, (width - w) / 2);
    let mut planes = vec![0u8; channels * height * width];
    for c in 0..channels {
        for i in 0..h {
            for j in 0..w {
                planes[(c * height + top + i) * width + left + j] = interleaved[(i * w + j) * channels + c];
            }
        }
    }
    planes
}
