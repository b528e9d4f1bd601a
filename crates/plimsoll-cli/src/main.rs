//! The `plimsoll` command. Parses arguments, asks the library, prints.

mod arena;
mod calibrate;
mod check;
#[cfg(test)]
mod command_reference;
mod completions;
mod data;
mod data_progress;
mod devices;
mod evaluate;
mod export;
mod generate;
mod import;
mod kernel_profile;
mod output;
mod plan;
mod predict;
mod predict_files;
mod profile;
mod progress;
mod progress_line;
mod ranks;
mod refused;
mod report;
mod run_args;
mod runs;
mod schema;
mod selftest;
mod signals;
mod sweep;
mod text;
mod train;
mod trained;
mod watch;
mod zoo;

use anyhow::Result;
use clap::ArgMatches;
use output::{complain, message, print, say};
use plimsoll::{CountingAllocator, Error, give_back_program_pages, return_freed_memory_early};
use serde_json::json;
use std::process::ExitCode;

/// Counts the heap, so that allocations outside the plan are measured too.
#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// The exit status of a run that does not fit its budget.
const INFEASIBLE: u8 = 3;

/// The subcommands, in the order of `--help`.
const COMMANDS: &[Entry] = &[
    Entry::of::<train::Train>(),
    Entry::of::<plan::Plan>(),
    Entry::of::<calibrate::Calibrate>(),
    Entry::of::<check::Check>(),
    Entry::of::<report::Report>(),
    Entry::of::<profile::Profile>(),
    Entry::of::<watch::Watch>(),
    Entry::of::<runs::Runs>(),
    Entry::of::<data::Data>(),
    Entry::of::<evaluate::Evaluate>(),
    Entry::of::<predict::Predict>(),
    Entry::of::<generate::Generate>(),
    Entry::of::<import::Import>(),
    Entry::of::<export::Export>(),
    Entry::of::<export::Convert>(),
    Entry::of::<zoo::Zoo>(),
    Entry::of::<arena::Arena>(),
    Entry::of::<devices::Devices>(),
    Entry::of::<selftest::Selftest>(),
    Entry::of::<schema::Schema>(),
    Entry::of::<completions::Completions>(),
    Entry::of::<completions::Man>(),
];

/// A subcommand: the type holds its arguments, and the type's comment is its line in `--help`.
trait Command: clap::Args {
    const NAME: &'static str;

    fn run(&self) -> Result<ExitCode>;

    /// Whether one JSON document is wanted on standard output, of an error too.
    fn json(&self) -> bool {
        false
    }
}

/// A subcommand in the list.
struct Entry {
    name: &'static str,
    define: fn(clap::Command) -> clap::Command,
    run: fn(&ArgMatches) -> ExitCode,
}

impl Entry {
    const fn of<C: Command>() -> Entry {
        Entry { name: C::NAME, define: C::augment_args, run: run::<C> }
    }
}

fn main() -> ExitCode {
    // The code that loaded the program.
    give_back_program_pages();
    return_freed_memory_early();
    data_progress::show();
    refuse_long_files();
    let matches = match command_line().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return refuse(&error),
    };
    let (name, matches) = matches.subcommand().expect("one is required");
    let entry = COMMANDS.iter().find(|entry| entry.name == name).expect("only these are defined");
    (entry.run)(matches)
}

fn command_line() -> clap::Command {
    let all = clap::Command::new("plimsoll")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Train neural networks within a memory budget that is planned before the first step")
        .max_term_width(110)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(
            "\
Examples:
  plimsoll train                                 a small network on the embedded digits
  plimsoll plan run.toml --host-memory 96MiB     the memory of a run, before it runs
  plimsoll train run.toml --set train.loss=mse   any key of the configuration from the command line",
        );
    COMMANDS.iter().fold(all, |all, entry| all.subcommand((entry.define)(clap::Command::new(entry.name))))
}

/// Help and the version are what was asked for; anything else is an error of the command line.
fn refuse(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    say(&error.render().to_string()).map_or_else(|error| fail(&error, false), |()| ExitCode::SUCCESS)
}

fn run<C: Command>(matches: &ArgMatches) -> ExitCode {
    let command = match C::from_arg_matches(matches) {
        Ok(command) => command,
        Err(error) => return refuse(&error),
    };
    // The code that parsed the arguments.
    give_back_program_pages();
    command.run().unwrap_or_else(|error| fail(&error, command.json()))
}

/// One line that says what is wrong; with `--json` a document too. A refused budget is an answer: its document has the
/// numbers.
fn fail(error: &anyhow::Error, json: bool) -> ExitCode {
    if let Some(line) = ranks::error_line(error) {
        complain(&line);
    }
    let (document, status) = match error.downcast_ref() {
        Some(Error::Infeasible(infeasible)) => (infeasible.to_json(), ExitCode::from(INFEASIBLE)),
        Some(Error::PlanningInfeasible(refusal)) => (refusal.to_json(), ExitCode::from(INFEASIBLE)),
        Some(Error::PipelineInfeasible(refusal)) => (refusal.to_json(), ExitCode::from(INFEASIBLE)),
        Some(Error::OfRank { infeasible: true, .. }) => (json!({ "error": error.to_string() }), ExitCode::from(INFEASIBLE)),
        _ => (json!({ "error": message(error) }), ExitCode::FAILURE),
    };
    let printed = if json && ranks::prints() { print(&document) } else { Ok(()) };
    if let Some(unprinted) = printed.err().map(|error| error.to_string()).filter(|unprinted| *unprinted != error.to_string()) {
        complain(&format!("error: {unprinted}\n"));
    }
    status
}

/// A file that grows past what the user may write is an error where it is written, like a disk without space; unless
/// somebody asks for that, the system ends the process.
fn refuse_long_files() {
    #[cfg(target_os = "linux")]
    {
        const SIGXFSZ: i32 = 25;
        const IGNORE: usize = 1;
        unsafe extern "C" {
            fn signal(number: i32, handler: usize) -> usize;
        }
        // SAFETY: part of the C library that the program is linked to, called before there are other threads; to ignore
        // a signal runs no code.
        unsafe { signal(SIGXFSZ, IGNORE) };
    }
}
