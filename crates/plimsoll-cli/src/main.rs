//! The `plimsoll` command. Parses arguments, asks the library, prints.

mod arena;
mod args;
mod calibrate;
mod data;
mod devices;
mod progress;
mod selftest;
mod sweep;
mod text;
mod trained;
mod zoo;

use anyhow::Result;
use args::{Args, Command, GenerateArgs, PlanArgs, RunArgs};
use clap::Parser;
use plimsoll::config::Config;
use plimsoll::{Count, CountingAllocator, Error, Generator, RunFolder, RunPlan, Sampling, check_plan_file};
use progress::Progress;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Counts the heap, so that what no plan tracks is still a number.
#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

/// The run does not fit under its line.
const INFEASIBLE: u8 = 3;

/// A file that grows past what the user may write is an error where it is written, like a disk without room; unless somebody asks for that, the
/// system ends the process.
fn refuse_long_files() {
    #[cfg(target_os = "linux")]
    {
        const SIGXFSZ: i32 = 25;
        const IGNORE: usize = 1;
        unsafe extern "C" {
            fn signal(number: i32, handler: usize) -> usize;
        }
        // SAFETY: part of the C library that the program is linked to, called before there are other threads; to ignore a signal runs no code.
        unsafe { signal(SIGXFSZ, IGNORE) };
    }
}

fn main() -> ExitCode {
    refuse_long_files();
    let args = Args::parse();
    let result = match &args.command {
        Command::Train(run) => train(run),
        Command::Plan(run) => plan(run),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Check { plan, json } => check(plan, *json),
        Command::Evaluate(args) => trained::evaluate(args),
        Command::Predict(args) => trained::predict(args),
        Command::Generate(args) => generate(args),
        Command::Data(command) => data::run(command),
        Command::Zoo(args) => zoo::run(args),
        Command::Arena(command) => match arena::run(command) {
            Ok(false) => return ExitCode::from(INFEASIBLE),
            result => result.map(drop),
        },
        Command::Devices { json: true } => devices::json().map(|json| print(&json)).map_err(Into::into),
        Command::Devices { json: false } => devices::text().map(|text| say(&text)).map_err(Into::into),
        Command::Selftest { device, seed, only } => {
            match device.parse().map_err(Into::into).and_then(|choice| selftest::run(choice, *seed, only)) {
                Ok(false) => return ExitCode::FAILURE,
                result => result.map(drop),
            }
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, args.command.json()),
    }
}

/// One line that says what is wrong; with `--json` a document too. A refused budget is an answer: its document has the numbers.
fn fail(error: &anyhow::Error, json: bool) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "error: {error}");
    match error.downcast_ref() {
        Some(Error::Infeasible(infeasible)) => {
            if json {
                print(&infeasible.to_json());
            }
            ExitCode::from(INFEASIBLE)
        }
        Some(Error::PipelineInfeasible(refusal)) => {
            if json {
                print(&refusal.to_json());
            }
            ExitCode::from(INFEASIBLE)
        }
        _ => {
            if json {
                print(&json!({ "error": error.to_string() }));
            }
            ExitCode::FAILURE
        }
    }
}

fn train(args: &RunArgs) -> Result<()> {
    let mut run = configure(args)?.build()?;
    calibrate::apply(&mut run, args)?;
    // A run that cannot be leaves no folder behind.
    run.plan()?;
    let folder = match &args.out {
        Some(path) => RunFolder::open(path)?,
        None if args.resume => RunFolder::latest(run.title())?,
        None => RunFolder::next(run.title())?,
    };
    let mut progress = Progress::new(args.quiet);
    let history = run.train(&folder, args.resume, |event| progress.show(event))?;
    if args.json {
        let mut document = history.to_json();
        document["out"] = json!(folder.path());
        document["heap_peak_bytes"] = json!(HEAP.peak().0);
        print(&document);
    } else if !args.quiet {
        say(&text::summary(&history, folder.path()));
    }
    Ok(())
}

fn plan(args: &PlanArgs) -> Result<()> {
    let mut run = configure(&args.run)?.build()?;
    calibrate::apply(&mut run, &args.run)?;
    if args.count == "weights+activations" {
        run.count(Count::WeightsAndActivations);
    }
    if args.sweep {
        return sweep::run(&mut run, args);
    }
    let (plan, largest) = match args.max_batch {
        false => (run.plan()?, None),
        true => match run.largest_batch()? {
            Some(largest) => (largest.plan, Some(largest.batch)),
            // Not even one row: the refusal of a single row says why.
            None => (single_row(&args.run)?, None),
        },
    };
    if let Some(path) = &args.run.out {
        let document = run.plan_file(&plan);
        std::fs::write(path, format!("{document:#}\n")).map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))?;
    }
    if args.run.json {
        let mut document = plan.to_json();
        if args.max_batch {
            document["max_batch"] = json!(largest);
        }
        print(&document);
    } else if !args.run.quiet {
        say(&format!("{plan}\n"));
        if args.log_placement {
            say(&format!("\n{}", plan.placement()));
        }
    }
    Ok(())
}

/// Proves a plan from its file alone.
fn check(path: &Path, json: bool) -> Result<()> {
    let text = std::fs::read_to_string(path).map_err(|error| anyhow::anyhow!("cannot read {}: {error}", path.display()))?;
    let checked = check_plan_file(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    if json {
        print(&json!({
            "holds": true,
            "rows": checked.rows,
            "arena_bytes": checked.arena.0,
            "programs": checked.programs,
            "steps": checked.steps,
            "recomputed": checked.repeated,
        }));
    } else {
        let (steps, programs, again) = (checked.steps, checked.programs, checked.repeated);
        say(&format!(
            "holds: {steps} steps of {programs} programs for {} rows in an arena of {}; {again} of them compute something again\n",
            checked.rows, checked.arena
        ));
    }
    Ok(())
}

/// Writes text as it is drawn.
fn generate(args: &GenerateArgs) -> Result<()> {
    if !args.temperature.is_finite() || args.temperature < 0.0 {
        anyhow::bail!("`--temperature` is {}, but should be a number of at least 0", args.temperature);
    }
    let mut generator = Generator::open(&args.run)?;
    let sampling = Sampling { temperature: args.temperature, top_k: args.top_k.map(|k| k as usize), seed: args.seed };
    say(&args.prompt);
    generator.generate(&args.prompt, args.length, &sampling, |char| {
        say(char.encode_utf8(&mut [0; 4]));
        let _ = std::io::stdout().flush();
    })?;
    say("\n");
    Ok(())
}

/// The plan of a batch of one row.
fn single_row(args: &RunArgs) -> Result<RunPlan> {
    let mut config = configure(args)?;
    config.set_value("train.batch", 1)?;
    Ok(config.build()?.plan()?)
}

/// The configuration with the flags on top.
fn configure(args: &RunArgs) -> Result<Config> {
    // A run that goes on has its configuration in its folder.
    let own = args.out.as_deref().filter(|_| args.resume).and_then(RunFolder::config_in);
    let mut config = match (&args.zoo, args.config.as_ref().or(own.as_ref())) {
        (Some(name), _) => Config::zoo(name)?,
        (None, Some(path)) => Config::read(path)?,
        (None, None) => Config::digits(),
    };
    if let Some(size) = &args.input {
        let sizes: Result<Vec<i64>, _> = size.split('x').map(str::parse).collect();
        let sizes = sizes.map_err(|_| anyhow::anyhow!("`--input {size}` is not a size such as 416x608"))?;
        config.set_value("model.input", sizes)?;
    }
    if let Some(allow) = &args.allow {
        config.set_value("budget.allow", allow.as_str())?;
    }
    let counts = [
        ("train.batch", args.batch),
        ("train.micro_batch", args.micro_batch),
        ("train.epochs", args.epochs),
        ("train.seed", args.seed),
        ("train.threads", args.threads),
    ];
    for (key, count) in counts.into_iter().filter_map(|(key, count)| Some((key, count?))) {
        config.set_value(key, whole(key, count)?)?;
    }
    for (key, size) in [("budget.host", args.host_memory), ("budget.device", args.device_memory)] {
        if let Some(size) = size {
            config.set_value(key, whole(key, size.0)?)?;
        }
    }
    for (key, name) in [("train.device", &args.device), ("train.device_profile", &args.device_profile)] {
        if let Some(name) = name {
            config.set_value(key, name.as_str())?;
        }
    }
    if let Some(path) = &args.weights {
        // Like every path on a command line, it begins where the command is given.
        config.set_value("train.weights", std::path::absolute(path)?.to_string_lossy().into_owned())?;
    }
    for assignment in &args.set {
        config.set(assignment)?;
    }
    Ok(config)
}

/// A number as configurations hold it.
fn whole(key: &str, number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| anyhow::anyhow!("`{key}` is {number}, but should be at most {}", i64::MAX))
}

fn print(document: &Value) {
    say(&format!("{document:#}\n"));
}

/// Writes to standard output. Whoever listened and left, or has no room, is no reason to panic.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
