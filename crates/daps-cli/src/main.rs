//! The `daps` command: parse, build, run, print. No algorithm lives here.

mod bar;
mod compare;
mod list;
mod run;
mod table;
mod toy;
mod validate;
mod weights;

use clap::{Parser, Subcommand};

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
    /// Draw posterior samples for the problem of a configuration file
    Run(run::Args),
    /// Compare samplers with posteriors that are known in closed form
    #[command(subcommand)]
    Validate(validate::Command),
    /// The paper's two-dimensional experiment: DAPS beside DPS
    Toy(toy::Args),
    /// Compare reconstructions with the truth: PSNR, SSIM, LPIPS, FID
    Compare(compare::Args),
    /// Look into checkpoints, convert them, fetch the weights of metrics
    #[command(subcommand)]
    Weights(weights::Command),
    /// List operators, kernels, methods, priors, presets or budgets
    List(list::ListArgs),
    /// Explain an operator, kernel, method, prior or preset by its name
    Explain(list::ExplainArgs),
}

/// Exit codes: 0 done, 1 a validation found a disagreement, 2 the request cannot be carried out, 130 stopped by Ctrl-C.
enum Outcome {
    Done,
    Disagreement,
    Stopped,
}

fn main() {
    let outcome = match Args::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Validate(command) => validate::run(&command),
        Command::Toy(args) => toy::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Weights(command) => weights::run(&command),
        Command::List(args) => list::list(&args),
        Command::Explain(args) => list::explain(&args),
    };
    std::process::exit(match outcome {
        Ok(Outcome::Done) => 0,
        Ok(Outcome::Disagreement) => 1,
        Ok(Outcome::Stopped) => 130,
        Err(error) => {
            eprintln!("error: {error:#}");
            2
        }
    });
}
