//! What is built on many runs: experiments, the search for a method's settings, and validation against known answers.

pub mod experiment;
pub mod tune;
mod tuned;
pub mod validate;
