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

/// Draw samples from the posterior of an inverse problem with a diffusion prior, and check that they are.
#[derive(Parser)]
#[command(version, about, propagate_version = true)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Solve every task of the paper's table on bundled faces: one picture, one report
    Demo(demo::Args),
    /// Draw posterior samples for a picture or a measurement of your own
    Solve(Box<solve::Args>),
    /// Draw posterior samples for the problem of a configuration file
    Run(run::Args),
    /// Run methods x tasks x images x seeds from a file: tables, drawings and a report; a killed one goes on
    Experiment(experiment::Args),
    /// Search for a method's free parameters on a few images
    Tune(tune::Args),
    /// Compare samplers with posteriors that are known in closed form
    #[command(subcommand)]
    Validate(validate::Command),
    /// The paper's two-dimensional experiment: DAPS beside DPS
    Toy(toy::Args),
    /// Train a network prior on a data set
    Train(train::Args),
    /// Compare reconstructions with the truth: PSNR, SSIM, LPIPS, FID
    Compare(compare::Args),
    /// Look into checkpoints, convert them, fetch the weights of metrics
    #[command(subcommand)]
    Weights(weights::Command),
    /// Time layers and networks on this machine
    #[command(subcommand)]
    Bench(bench::Command),
    /// List tasks, operators, kernels, methods, priors, presets, budgets or the methods of the mixture test bed
    List(list::ListArgs),
    /// Explain anything that `daps list` shows by its name
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
