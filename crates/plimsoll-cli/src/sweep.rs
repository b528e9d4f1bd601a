//! `plimsoll plan --sweep`: step time against budget, as a table, a JSON document and a plot.

use crate::output::{print, say};
use crate::plan::Plan;
use crate::text::seconds;
use anyhow::{Result, bail};
use plimsoll::{Bytes, Permission, RunPlan, Sweep, Trainer};
use std::io::IsTerminal;

/// Plans for smaller and smaller budgets and prints the results.
pub fn run(trainer: &Trainer, args: &Plan) -> Result<()> {
    let path = args.plot.as_ref().or(args.run.out.as_ref());
    if let Some(path) = path.filter(|path| path.extension().is_none_or(|extension| extension != "svg")) {
        bail!("plots are written as SVG; name the file {}", path.with_extension("svg").display());
    }
    let sweep = planned(trainer, args.run.quiet || args.run.json)?;
    if let Some(path) = path {
        let fail = |error: std::io::Error| anyhow::anyhow!("cannot write {}: {error}", path.display());
        std::fs::write(path, svg(&sweep)).map_err(fail)?;
    }
    if args.run.json {
        print(&sweep.to_json())?;
    } else if !args.run.quiet {
        say(&table(&sweep))?;
    }
    Ok(())
}

/// Plans for smaller and smaller budgets, with progress on the terminal.
pub fn planned(trainer: &Trainer, quiet: bool) -> Result<Sweep> {
    Ok(trainer.sweep(&mut progress(quiet))?)
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

/// The size of the plot, and its margins: left, right, top, bottom.
const SIZE: (f64, f64) = (760.0, 440.0);
const MARGIN: (f64, f64, f64, f64) = (86.0, 36.0, 76.0, 60.0);

/// Labels on an axis, about.
const TICKS: f64 = 5.0;

/// The curve as SVG: bytes on the x axis, seconds on the y axis, both from zero, with round ticks and a legend.
fn svg(sweep: &Sweep) -> String {
    let (left, right, top, bottom) = MARGIN;
    let (width, height) = (SIZE.0 - left - right, SIZE.1 - top - bottom);
    let most = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
    let budgets = byte_ticks(most(&mut sweep.points.iter().map(|point| point.budget.0 as f64)));
    let times = time_ticks(most(&mut sweep.points.iter().map(|point| point.plan.predicted_s)));
    let (bytes, time) = (budgets[budgets.len() - 1], times[times.len() - 1]);
    let x = |budget: f64| left + width * budget / bytes;
    let y = |seconds: f64| top + height * (1.0 - seconds / time);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        SIZE.0, SIZE.1
    );
    let title = sweep.points.first().map_or(String::new(), |point| format!("{} · batch {}", escape(&point.plan.model), point.plan.batch));
    text += &format!("<text x=\"{left}\" y=\"28\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n");
    for at in &times {
        text += &format!("<path d=\"M{left} {:.1}H{:.1}\" stroke=\"#ddd\"/>\n", y(*at), left + width);
        text += &format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n", left - 8.0, y(*at) + 4.0, round_time(*at));
    }
    for budget in &budgets {
        text += &format!("<path d=\"M{:.1} {top}V{:.1}\" stroke=\"#ddd\"/>\n", x(*budget), top + height);
        let label = round_bytes(*budget);
        text += &format!("<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>\n", x(*budget), top + height + 18.0);
    }
    let below = top + height + 44.0;
    text += &format!("<text x=\"{:.1}\" y=\"{below}\" text-anchor=\"middle\">{} memory budget</text>\n", left + width / 2.0, space(sweep));
    text += &format!(
        "<text transform=\"translate(20 {:.1}) rotate(-90)\" text-anchor=\"middle\">predicted step time</text>\n",
        top + height / 2.0
    );
    let refused = sweep.infeasible.filter(|(_, least)| least.0 as f64 <= bytes);
    if let Some((_, least)) = refused {
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
    text + &legend(left, refused.map(|(_, least)| least)) + "</svg>\n"
}

/// What line and shading mean, above the plot.
fn legend(left: f64, least: Option<Bytes>) -> String {
    let mut text = format!(
        "<path d=\"M{left} 52h22\" stroke=\"#1763a6\" stroke-width=\"2\"/><circle cx=\"{:.1}\" cy=\"52\" r=\"3.5\" fill=\"#1763a6\"/>\n\
         <text x=\"{:.1}\" y=\"56\">fastest plan within the budget</text>\n",
        left + 11.0,
        left + 30.0
    );
    if let Some(least) = least {
        text += &format!(
            "<rect x=\"{:.1}\" y=\"45\" width=\"22\" height=\"14\" fill=\"#c33\" opacity=\"0.10\"/>\n<text x=\"{:.1}\" y=\"56\">refused: \
             the minimum is {least}</text>\n",
            left + 220.0,
            left + 250.0
        );
    }
    text
}

/// Round numbers of bytes from zero to at least `most`.
fn byte_ticks(most: f64) -> Vec<f64> {
    let unit = 1024f64.powf((most / TICKS).max(1.0).log(1024.0).floor());
    let step = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1024.0].map(|step| step * unit);
    ticks(most, step.into_iter().find(|step| step * TICKS >= most).unwrap_or(1024.0 * unit))
}

/// Round times from zero to at least `most`.
fn time_ticks(most: f64) -> Vec<f64> {
    let unit = 10f64.powf((most / TICKS).log10().floor());
    ticks(most, [1.0, 2.0, 5.0, 10.0].map(|step| step * unit).into_iter().find(|step| step * TICKS >= most).unwrap_or(10.0 * unit))
}

fn ticks(most: f64, step: f64) -> Vec<f64> {
    (0..=(most / step).ceil() as u32).map(|i| f64::from(i) * step).collect()
}

/// A round number of bytes, without digits that say nothing.
fn round_bytes(bytes: f64) -> String {
    let (unit, name) = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit as f64)
        .unwrap_or((1, "B"));
    format!("{} {name}", rounded(bytes / unit as f64))
}

/// A round time.
fn round_time(seconds: f64) -> String {
    match seconds {
        0.0 => "0".to_string(),
        s if s < 1e-3 => format!("{} µs", rounded(1e6 * s)),
        s if s < 1.0 => format!("{} ms", rounded(1e3 * s)),
        s => format!("{} s", rounded(s)),
    }
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_curve() {
        let labels = |ticks: Vec<f64>, text: fn(f64) -> String| ticks.into_iter().map(text).collect::<Vec<_>>().join(" · ");
        assert_eq!(labels(byte_ticks(23.8e6), round_bytes), "0 B · 5 MiB · 10 MiB · 15 MiB · 20 MiB · 25 MiB");
        assert_eq!(labels(byte_ticks(7.3e9), round_bytes), "0 B · 2 GiB · 4 GiB · 6 GiB · 8 GiB");
        assert_eq!(labels(time_ticks(0.0087), round_time), "0 · 2 ms · 4 ms · 6 ms · 8 ms · 10 ms");
        assert_eq!(labels(time_ticks(41.0), round_time), "0 · 10 s · 20 s · 30 s · 40 s · 50 s");
    }
}
