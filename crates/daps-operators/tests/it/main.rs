//! Tests of operators, in one program: each test file of its own would compile the same code again.

mod files;
mod golden;
mod laws;
mod preconditioner;
mod twins;
