//! What a network needs for a pixel: memory, and the pixels around it.

use super::{Architecture, NetworkConfig};

/// Numbers that a network holds at once, for each pixel of an image: f32, four bytes each.
///
/// These are upper bounds that follow from the channels. They count what the pool of buffers keeps: one level's buffers do not fit
/// another one, so that the levels add up even where they do not live at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Footprint {
    /// Of a call.
    pub plain: f64,
    /// Of a call whose history is kept, and of the way back.
    pub taped: f64,
}

/// Buffers come in sizes of which the next one is at most so much larger.
const ROUNDING: f64 = 1.15;
/// Images at the network's border: the input scaled and rearranged, the output, and what becomes of it.
const AT_BORDER: f64 = 10.0;
/// Buffers of a block beside the two for what it reads: convolutions, norms, the skip, attention and their leftovers. Measured, see
/// `tests/memory.rs`.
const IN_BLOCK: usize = 8;

/// Of a U-Net: its first channels, those of its levels, and the blocks of a level on the way down.
fn u_net(image: usize, first: usize, levels: &[usize], blocks: usize) -> Footprint {
    let (mut plain, mut taped) = (AT_BORDER * image as f64, AT_BORDER * image as f64);
    for (l, own) in levels.iter().copied().enumerate() {
        let above = if l == 0 { first } else { levels[l - 1] };
        let below = levels.get(l + 1).copied().unwrap_or(own);
        // On the way up a block reads what came from below beside what was kept on the way down.
        let read = own.max(below) + own.max(above);
        let (kept, block) = (above + blocks * own, 2 * read + IN_BLOCK * own);
        // Down, up with one more, the changes of size on both ways, and two at the bottom; a history keeps them all.
        let all = 2 * blocks + 5;
        let area = 0.25f64.powi(l as i32);
        plain += area * (kept + block) as f64;
        taped += area * (kept + block + all * (read + 2 * own) / 2) as f64;
    }
    Footprint { plain: ROUNDING * plain, taped: ROUNDING * taped }
}

/// Of a U-Net whose ways meet in sums: the widths of its levels and their blocks on each way.
fn sums(image: usize, widths: &[usize], blocks: &[usize]) -> Footprint {
    let (mut plain, mut taped) = (AT_BORDER * image as f64, AT_BORDER * image as f64);
    for (l, (own, blocks)) in widths.iter().zip(blocks).enumerate() {
        // What was found on the way down, what comes from below, and a block; a history keeps two maps of each block on both ways.
        let (call, area) = (2 + IN_BLOCK, 0.25f64.powi(l as i32));
        plain += area * (call * own) as f64;
        taped += area * ((call + 4 * blocks) * own) as f64;
    }
    Footprint { plain: ROUNDING * plain, taped: ROUNDING * taped }
}

impl Architecture {
    /// Numbers for each pixel that the network sees.
    fn footprint(&self) -> Footprint {
        let levels = |model: usize, mult: &[usize]| mult.iter().map(|m| m * model).collect::<Vec<_>>();
        match self {
            Self::Adm(c) => {
                let levels = levels(c.model_channels, &c.channel_mult);
                u_net(2 * c.channels, levels[0], &levels, c.num_res_blocks)
            }
            Self::Song(c) => {
                u_net(c.channels, c.model_channels, &levels(c.model_channels, &c.channel_mult), c.num_blocks)
            }
            Self::Dhariwal(c) => {
                let levels = levels(c.model_channels, &c.channel_mult);
                u_net(c.channels, levels[0], &levels, c.num_blocks)
            }
            Self::ConvUnet(c) => sums(c.channels, &c.widths, &c.blocks),
            Self::ConvNet(c) => {
                let levels = levels(c.model_channels, &c.channel_mult);
                u_net(c.channels, levels[0], &levels, c.num_convs)
            }
        }
    }

    /// How far what the network sees reaches, in its pixels: a change of the input further away than this changes nothing. None where
    /// something looks at the whole image: attention, or a norm whose statistics are taken over space.
    fn reach(&self) -> Option<usize> {
        match self {
            Self::ConvUnet(c) => Some(c.reach()),
            Self::Adm(_) | Self::Song(_) | Self::Dhariwal(_) | Self::ConvNet(_) => None,
        }
    }
}

impl NetworkConfig {
    /// Numbers that the network holds for each pixel of an image.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        let (of, pixels) = (self.network.footprint(), (self.patch * self.patch) as f64);
        Footprint { plain: of.plain / pixels, taped: of.taped / pixels }
    }

    /// How many pixels away a change of the image can change the answer at a pixel; none where everything depends on everything.
    #[must_use]
    pub fn reach(&self) -> Option<usize> {
        Some(self.patch * self.network.reach()? + self.patch - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::NAMED;
    use crate::Memory;

    /// What fits a user's machine today does not change: every public network takes its own images whole, and their derivatives.
    #[test]
    fn public_networks_take_their_own_images_whole() {
        for named in NAMED {
            let config = (named.config)();
            let [_, height, width] = config.shape();
            let most = 4.0 * config.footprint().taped * (height * width) as f64;
            assert!(most < Memory::default().bytes() as f64, "{}: {most}", named.name);
            assert!(config.reach().is_none(), "{}", named.name);
        }
    }
}
