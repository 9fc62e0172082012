//! The `daps` command: parse, build, run, print. No algorithm lives here.

mod bar;
mod bench;
mod compare;
mod demo;
mod experiment;
mod list;
mod run;
mod solve;
mod table;
mod toy;
mod train;
mod tune;
mod validate;
mod weights;

use clap::{Parser, Subcommand};

use crate::table::tell;

/// Keeps freed pages: on a fresh buffer, page faults cost more than the memory-bound passes over it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Draw posterior samples for inverse problems with diffusion priors, and validate the samplers.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Solve the paper's tasks on bundled images: one overview image, one report
    Demo(demo::Args),
    /// Draw posterior samples for your own image or measurement
    Solve(Box<solve::Args>),
    /// Draw posterior samples for a problem described in a TOML file
    Run(run::Args),
    /// Run methods x tasks x images x seeds from a file: tables, plots and a report; rerun to resume
    Experiment(experiment::Args),
    /// Tune the free parameters of a method on a few images
    Tune(tune::Args),
    /// Compare samplers with posteriors that are known in closed form
    #[command(subcommand)]
    Validate(validate::Command),
    /// Run the paper's two-dimensional experiment: DAPS and DPS
    Toy(toy::Args),
    /// Train a network prior, or a classifier, on a data set
    Train(train::Args),
    /// Compare reconstructions with the truth: PSNR, SSIM, LPIPS, FID
    Compare(compare::Args),
    /// Inspect, convert and fetch weights
    #[command(subcommand)]
    Weights(weights::Command),
    /// Time layers and networks on this machine
    #[command(subcommand)]
    Bench(bench::Command),
    /// List tasks, operators, kernels, methods, priors, presets, budgets, noise models or mixture test-bed methods
    List(list::ListArgs),
    /// Explain a name from `daps list`
    Explain(list::ExplainArgs),
}

/// Exit codes: 0 done, 1 a validation found a disagreement, 2 the request cannot be carried out, 130 stopped by Ctrl-C.
enum Outcome {
    Done,
    Disagreement,
    Stopped,
}

fn main() {
    if let Err(error) = daps::nn::Isa::check() {
        tell(&format!("error: {error}"));
        std::process::exit(2);
    }
    let outcome = match Args::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Solve(args) => solve::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Experiment(args) => experiment::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Validate(command) => validate::run(&command),
        Command::Toy(args) => toy::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Weights(command) => weights::run(&command),
        Command::Bench(command) => bench::run(&command),
        Command::List(args) => list::list(&args),
        Command::Explain(args) => list::explain(&args),
    };
    std::process::exit(match outcome {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::Disagreement) => 1,
        Ok(Outcome::Stopped) => 130,
        Err(error) => {
            tell(&format!("error: {error:#}"));
            2
        }
    });
}
