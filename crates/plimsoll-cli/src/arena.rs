//! `plimsoll arena`: offsets for buffers with known lifetimes, from a table to a table.

use crate::output::{print, say};
use crate::{Command, INFEASIBLE};
use anyhow::{Result, anyhow, bail, ensure};
use clap::Args;
use plimsoll::Bytes;
use plimsoll::arena::{BufferInterval, Goal, PackingEffort, Solution, solve};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Assign offsets to buffers with known lifetimes, from a table
#[derive(Args)]
pub struct Arena {
    /// CSV with the columns id, lower, upper, size: name, first time step, end (exclusive) and bytes of each buffer
    file: PathBuf,

    /// Arena size to fit into [default: the smallest found within the timeout]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<Bytes>,

    /// Verify the offsets with separate code before they are written
    #[arg(long)]
    verify: bool,

    /// Output CSV with offsets [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Search time in seconds; the best result by then is used
    #[arg(long, value_name = "S", default_value_t = 25.0, value_parser = seconds)]
    timeout: f64,

    /// Print one JSON document on standard output instead of the table
    #[arg(long)]
    json: bool,
}

impl Command for Arena {
    const NAME: &'static str = "arena";

    fn run(&self) -> Result<ExitCode> {
        Ok(if run(self)? { ExitCode::SUCCESS } else { ExitCode::from(INFEASIBLE) })
    }

    fn json(&self) -> bool {
        self.json
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number of seconds, such as 10 or 0.5"))
}

/// A buffer as the table has it.
struct Row {
    id: String,
    lower: u64,
    upper: u64,
    size: u64,
}

/// Whether the layout fits.
fn run(args: &Arena) -> Result<bool> {
    let text = std::fs::read_to_string(&args.file).map_err(|error| anyhow!("cannot read {}: {error}", args.file.display()))?;
    let rows = parse(&text).map_err(|what| anyhow!("{}{what}", args.file.display()))?;
    let blocks = blocks(&rows).map_err(|what| anyhow!("{}{what}", args.file.display()))?;
    let start = Instant::now();
    let goal = args.capacity.map_or(Goal::Smallest, Goal::Within);
    let solution = solve(&blocks, goal, PackingEffort { work: u64::MAX, keep_going: &|| start.elapsed().as_secs_f64() < args.timeout });
    let took = start.elapsed().as_secs_f64();
    if args.verify {
        verify(&rows, &solution)?;
    }
    let fits = args.capacity.is_none_or(|capacity| solution.layout.size <= capacity);
    let table = table(&rows, &solution);
    match &args.out {
        // A layout that does not fit is not left where one that does is expected.
        Some(path) if fits => write_whole(path, &table)?,
        None if fits && !args.json => say(&table)?,
        _ => {}
    }
    if args.json {
        print(&document(&rows, &solution, args, fits, took))?;
    }
    let _ = writeln!(std::io::stderr(), "{}", summary(&solution, args, fits, took));
    Ok(fits)
}

/// The rows of a table, or a phrase that begins where the file's name ends.
fn parse(text: &str) -> Result<Vec<Row>, String> {
    const COLUMNS: [&str; 4] = ["id", "lower", "upper", "size"];
    let mut lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim())).filter(|(_, line)| !line.is_empty());
    let expected = "the first line names the columns id, lower, upper, size";
    let Some((number, header)) = lines.next() else { return Err(format!(" is empty; {expected}")) };
    let names: Vec<&str> = header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
    let places = COLUMNS.map(|column| names.iter().position(|name| *name == column));
    let [Some(id), Some(lower), Some(upper), Some(size)] = places else {
        return Err(format!(", line {number}: `{header}` is not a header; {expected}"));
    };
    let mut rows: Vec<Row> = Vec::new();
    for (number, line) in lines {
        let fail = |what: String| format!(", line {number}: {what}");
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.len() != names.len() {
            return Err(fail(format!("has {} columns where the header has {}", fields.len(), names.len())));
        }
        let whole = |place: usize| {
            let what = format!("the {} `{}` is not an integer from 0 to {}", names[place], fields[place], u64::MAX);
            fields[place].parse::<u64>().map_err(|_| fail(what))
        };
        let row = Row { id: fields[id].to_string(), lower: whole(lower)?, upper: whole(upper)?, size: whole(size)? };
        if row.size == 0 {
            return Err(fail("a buffer of no bytes needs no place; take it out".to_string()));
        }
        if row.lower >= row.upper {
            return Err(fail(format!(
                "the buffer ends ({}) before it begins ({}); upper is the moment after its last",
                row.upper, row.lower
            )));
        }
        rows.push(row);
    }
    if rows.is_empty() { Err(" has a header but no buffers".to_string()) } else { Ok(rows) }
}

/// Moments become steps: only their order matters.
fn blocks(rows: &[Row]) -> Result<Vec<BufferInterval>, String> {
    rows.iter().try_fold(0u64, |sum, row| sum.checked_add(row.size)).ok_or(": the sizes add up to more than 2^64 bytes")?;
    let mut moments: Vec<u64> = rows.iter().flat_map(|row| [row.lower, row.upper]).collect();
    moments.sort_unstable();
    moments.dedup();
    let step = |moment: u64| moments.partition_point(|other| *other < moment) as u32;
    Ok(rows.iter().map(|row| BufferInterval { first: step(row.lower), last: step(row.upper) - 1, size: Bytes(row.size) }).collect())
}

/// Plays the table moment by moment, with a map of what is held; shares nothing with the solver.
fn verify(rows: &[Row], solution: &Solution) -> Result<()> {
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * rows.len());
    let mut held: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    ensure!(
        solution.layout.offsets.len() == rows.len(),
        "the layout does not hold: it has {} offsets for {} buffers",
        solution.layout.offsets.len(),
        rows.len()
    );
    for (at, row) in rows.iter().enumerate() {
        // What ends at a moment makes space for what begins then.
        events.extend([(row.upper, false, at), (row.lower, true, at)]);
    }
    events.sort_unstable();
    for (moment, begins, at) in events {
        let (start, row) = (solution.layout.offsets[at].0, &rows[at]);
        if !begins {
            held.remove(&start);
            continue;
        }
        let end = start.checked_add(row.size).filter(|end| *end <= solution.layout.size.0);
        let Some(end) = end else { bail!("the layout does not hold: buffer {} ends above {} bytes", row.id, solution.layout.size.0) };
        let below = held.range(..end).next_back().filter(|(_, (top, _))| *top > start);
        if let Some((_, (_, other))) = below {
            bail!("the layout does not hold: buffers {} and {} overlap at {moment}", rows[*other].id, row.id);
        }
        held.insert(start, (end, at));
    }
    Ok(())
}

fn table(rows: &[Row], solution: &Solution) -> String {
    let mut text = String::from("id,lower,upper,size,offset\n");
    for (row, offset) in rows.iter().zip(&solution.layout.offsets) {
        let _ = writeln!(text, "{},{},{},{},{}", row.id, row.lower, row.upper, row.size, offset.0);
    }
    text
}

fn summary(solution: &Solution, args: &Arena, fits: bool, took: f64) -> String {
    let (size, bound) = (solution.layout.size.0, solution.layout.lower_bound.0);
    let verified = if args.verify { ", verified" } else { "" };
    let verdict = match (args.capacity, fits, solution.proven) {
        (Some(capacity), true, _) => format!("fits into {}", capacity.0),
        (Some(capacity), false, true) => format!("does not fit into {}: proven impossible; the minimum found is {size}", capacity.0),
        (Some(capacity), false, false) => {
            format!("does not fit into {}: none found in time, nor proven impossible; the minimum found is {size}", capacity.0)
        }
        (None, _, true) => "proven smallest".to_string(),
        (None, _, false) => "not proven smallest".to_string(),
    };
    format!("bound {bound} · result {size} · {verdict}{verified} · {took:.3} s, {} restarts", solution.restarts)
}

fn document(rows: &[Row], solution: &Solution, args: &Arena, fits: bool, took: f64) -> Value {
    let offsets: Vec<Value> =
        rows.iter().zip(&solution.layout.offsets).map(|(row, offset)| json!({ "id": row.id, "offset": offset.0 })).collect();
    json!({
        "buffers": rows.len(),
        "capacity_bytes": args.capacity.map(|capacity| capacity.0),
        "fits": fits,
        "lower_bound_bytes": solution.layout.lower_bound.0,
        "arena_bytes": solution.layout.size.0,
        "proven": solution.proven,
        "verified": args.verify,
        "restarts": solution.restarts,
        "seconds": took,
        "offsets": offsets,
    })
}

/// Writes the file whole or not at all.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let written = std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    written.map_err(|error| anyhow!("cannot write {}: {error}", path.display()))
}
