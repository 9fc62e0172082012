//! The command as a user meets it, in one binary: linking takes longer than most of its tests.

mod bench;
mod cli;
mod common;
mod demo;
mod discrete;
mod experiment;
mod inputs;
mod solve;
mod train;
mod weights;
