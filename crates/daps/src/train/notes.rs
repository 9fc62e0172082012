//! What a training says before it begins: how its data were adapted and what will be missing later, and what cannot be meant.

use daps_priors::training::{Adapted, Dataset, Goal, TrainConfig, Trainer};

use crate::Result;

/// A sentence for each thing that a user may not have meant.
pub(super) fn notes(trainer: &Trainer) -> Vec<String> {
    let (config, data) = (trainer.config(), trainer.data());
    let mut notes = adapted(data);
    let train = data.train.len();
    if config.batch > train {
        notes.push(format!(
            "a batch of {} images is larger than the {train} images to train on: it shows some of them more than once",
            config.batch
        ));
    }
    let held_out = data.held_out.len();
    let (least, why) = match config.goal() {
        Goal::Denoiser => (2, "to measure r(σ)"),
        Goal::Classes(classes) if classes.test.is_some() => (0, ""),
        Goal::Tokens(_) | Goal::Classes(_) => (1, "to judge the result"),
    };
    if held_out < least {
        notes.push(format!(
            "data.held_out = {held_out}: `daps train export` needs at least {least} held-out images {why}, and a run cannot \
             change that number later"
        ));
    }
    notes.extend(trainer.start_notes().iter().map(|note| (*note).to_owned()));
    notes
}

/// How the images were made to fit the network.
pub(super) fn adapted(data: &Dataset) -> Vec<String> {
    data.adapted.as_ref().map(Adapted::notes).unwrap_or_default()
}

/// Refuses to begin with data that cannot be meant.
pub(super) fn refuse(config: &TrainConfig, data: &Dataset) -> Result<()> {
    let (train, held_out) = (data.train.len(), data.held_out.len());
    if held_out > train {
        let (count, most) = (train + held_out, (train + held_out) / 2);
        let expected = format!("at most {most}, half of the {count} images");
        return Err(daps_core::Error::invalid("data.held_out", expected, held_out).into());
    }
    if let Some((w, h)) = data.adapted.as_ref().and_then(Adapted::far_too_small) {
        let [_, height, width] = data.train.shape();
        let patch = if config.patch > 1 { format!(" with patch = {}", config.patch) } else { String::new() };
        let expected = format!("a size that the images have: they are {w}x{h} or smaller");
        let got = format!("{width}x{height}{patch}, at least twice as large");
        return Err(daps_core::Error::invalid("network.image_size", expected, got).into());
    }
    Ok(())
}
