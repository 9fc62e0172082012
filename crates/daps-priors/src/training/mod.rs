//! Training of networks: a loss on a data set, AdamW, averaged weights, and checkpoints from which a killed run goes on
//! to the same bits. Everything random is a function of (seed, step).

mod batch;
mod config;
mod curve;
mod data;
mod export;
mod file;
mod local;
mod loss;
mod optimizer;
mod trainer;
mod validation;

pub use batch::{Batch, Batches, LabelledBatch, TokenBatch};
pub use config::{
    CardConfig, ClassesConfig, EmaConfig, Goal, LossConfig, OptimizerConfig, TestConfig, TokensConfig,
    TrainConfig,
};
pub use curve::{Loss, Point, WINDOW};
pub use data::{Adapted, Crops, DataConfig, Dataset, Fit, Images, Labels, Watch, read_labels};
pub use export::{Export, export_classifier, export_tokens, spread_levels, write_measured};
pub use file::at_setting;
pub use local::{LOCAL_STEPS, train_local};
pub use loss::loss_and_gradients;
pub use optimizer::{AdamW, ema_decay, learning_rate};
pub use trainer::Trainer;
pub use validation::{DENOISING_LEVELS, draw_rows, draw_samples, measure_spread, psnr};
