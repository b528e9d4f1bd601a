//! `plimsoll plan --sweep`: step time against budget, as a table, a JSON document and a plot.

use crate::output::{print, say};
use crate::plan::Plan;
use crate::text::seconds;
use anyhow::{Result, bail};
use plimsoll::{Bytes, Permission, RunPlan, Sweep, Trainer};
use serde_json::{Value, json};
use std::io::IsTerminal;

/// Plans for smaller and smaller budgets and prints the results.
pub fn run(trainer: &Trainer, args: &Plan) -> Result<()> {
    let path = args.plot.as_ref().or(args.run.out.as_ref());
    if let Some(path) = path.filter(|path| path.extension().is_none_or(|extension| extension != "svg")) {
        bail!("plots are written as SVG; name the file {}", path.with_extension("svg").display());
    }
    let sweep = trainer.sweep(&mut progress(args.run.quiet || args.run.json))?;
    if let Some(path) = path {
        let fail = |error: std::io::Error| anyhow::anyhow!("cannot write {}: {error}", path.display());
        std::fs::write(path, svg(&sweep)).map_err(fail)?;
    }
    if args.run.json {
        print(&document(&sweep))?;
    } else if !args.run.quiet {
        say(&table(&sweep))?;
    }
    Ok(())
}

/// A line on the terminal that counts the planned budgets.
fn progress(quiet: bool) -> impl FnMut(usize, usize) {
    let shown = !quiet && std::io::stderr().is_terminal();
    move |done, all| {
        if shown {
            let text = if done < all { format!("planning budget {} of {all}", done + 1) } else { String::new() };
            eprint!("\r{text:<40}{}", if done < all { "" } else { "\r" });
        }
    }
}

fn space(sweep: &Sweep) -> &'static str {
    if sweep.on_device { "device" } else { "host" }
}

fn document(sweep: &Sweep) -> Value {
    let points: Vec<Value> = sweep
        .points
        .iter()
        .map(|point| {
            json!({
                "budget_bytes": point.budget.0,
                "predicted_step_s": point.plan.predicted_s,
                "recompute_flops_ratio": point.plan.recomputation.flops_ratio(),
                "micro_batch": point.plan.micro_batch,
                "arena_bytes": point.plan.memory.arena.0,
                "used": point.plan.used.iter().map(|permission| permission.name()).collect::<Vec<_>>(),
            })
        })
        .collect();
    let refused = sweep.infeasible.map(|(line, least)| json!({ "budget_bytes": line.0, "least_bytes": least.0 }));
    json!({ "space": space(sweep), "points": points, "refused": refused })
}

fn table(sweep: &Sweep) -> String {
    let Some(free) = sweep.points.first() else { return String::new() };
    let mut text = format!(
        "{:>12}  {:>6}  {:>12}  {:>7}  {:>11}  {}\n",
        format!("{} budget", space(sweep)),
        "of all",
        "step time",
        "relative",
        "micro-batch",
        "strategy"
    );
    for point in &sweep.points {
        let plan = &point.plan;
        let done = done(plan);
        text += &format!(
            "{:>12}  {:>4.0} %  {:>12}  {:>6.3}×  {:>11}  {done}\n",
            point.budget.to_string(),
            100.0 * point.budget.0 as f64 / free.budget.0.max(1) as f64,
            seconds(plan.predicted_s),
            plan.predicted_s / free.plan.predicted_s.max(f64::MIN_POSITIVE),
            plan.micro_batch,
        );
    }
    if let Some((line, least)) = sweep.infeasible {
        text += &format!("{:>12}  is infeasible; the minimum found is {least} ({} bytes)\n", line.to_string(), least.0);
    }
    text
}

/// The strategies of a plan besides micro-batches.
fn done(plan: &RunPlan) -> String {
    let again = plan.recomputation.nodes.len();
    let again = (again > 0).then(|| format!("{again} activations recomputed (+{:.1} % FLOPs)", 100.0 * plan.recomputation.flops_ratio()));
    let cut = plan.split.as_ref().map(|split| format!("{} layers split", split.layers.len()));
    let elsewhere = (plan.offload_bytes() > Bytes::ZERO).then(|| format!("{} offloaded", plan.offload_bytes()));
    let fewer_bits = plan.used.iter().filter(|used| matches!(used, Permission::MixedPrecision | Permission::State8bit));
    let all: Vec<String> = cut.into_iter().chain(again).chain(elsewhere).chain(fewer_bits.map(|used| used.name().to_string())).collect();
    if all.is_empty() { "none".to_string() } else { all.join(", ") }
}

/// The size of the plot, and its margins.
const SIZE: (f64, f64) = (720.0, 420.0);
const MARGIN: (f64, f64, f64, f64) = (74.0, 24.0, 44.0, 56.0);

/// The curve as SVG: bytes on the x axis, seconds on the y axis, both from zero.
fn svg(sweep: &Sweep) -> String {
    let (left, right, top, bottom) = MARGIN;
    let (width, height) = (SIZE.0 - left - right, SIZE.1 - top - bottom);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
    let bytes = 1.04 * most(&mut sweep.points.iter().map(|point| point.budget.0 as f64));
    let time = 1.12 * most(&mut sweep.points.iter().map(|point| point.plan.predicted_s));
    let x = |line: f64| left + width * line / bytes;
    let y = |seconds: f64| top + height * (1.0 - seconds / time);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        SIZE.0, SIZE.1
    );
    let title = sweep.points.first().map_or(String::new(), |point| format!("{} · batch {}", escape(&point.plan.model), point.plan.batch));
    text += &format!("<text x=\"{left}\" y=\"26\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n");
    for share in 0..=4 {
        let (line, at) = (bytes * f64::from(share) / 4.0, time * f64::from(share) / 4.0);
        text += &format!(
            "<path d=\"M{left} {:.1}H{:.1}M{:.1} {top}V{:.1}\" stroke=\"#ddd\" fill=\"none\"/>\n",
            y(at),
            left + width,
            x(line),
            top + height
        );
        text += &format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n", left - 8.0, y(at) + 4.0, seconds(at));
        text +=
            &format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n", x(line), top + height + 18.0, Bytes(line as u64));
    }
    let below = top + height + 42.0;
    text += &format!("<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"middle\">{} memory budget</text>\n", left + width / 2.0, space(sweep));
    text += &format!(
        "<text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">predicted step time</text>\n",
        top + height / 2.0
    );
    if let Some((_, least)) = sweep.infeasible.filter(|(_, least)| least.0 as f64 <= bytes) {
        text += &format!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"{:.1}\" height=\"{height}\" fill=\"#c33\" opacity=\"0.10\"/>\n",
            x(least.0 as f64) - left
        );
    }
    let spots: Vec<(f64, f64)> = sweep.points.iter().map(|point| (x(point.budget.0 as f64), y(point.plan.predicted_s))).collect();
    let path: Vec<String> = spots.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    text += &format!("<polyline points=\"{}\" fill=\"none\" stroke=\"#1763a6\" stroke-width=\"2\"/>\n", path.join(" "));
    for (x, y) in spots {
        text += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"#1763a6\"/>\n");
    }
    text + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
