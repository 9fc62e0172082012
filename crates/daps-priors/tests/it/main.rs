//! Tests of priors, networks and training, in one program: each test file of its own would compile the same code again.

mod adm_golden;
mod checkpoint;
mod classifier;
mod common;
mod conditional;
mod denoiser;
mod edm_golden;
mod posterior;
mod sizes;
mod tiles;
mod tokens;
mod training;
mod training_data;
mod training_file;
