//! Tests of methods and kernels, in one program: each test file of its own would compile the same code again.

mod annealing;
mod calibration;
mod clean;
mod discrete;
mod exact_draws;
mod frequency;
mod noise_models;
mod nonlinear;
mod own_operator;
mod rivals;
mod trajectories;
