// The budget gauge, the strategy, and what a refused budget would need.
function owners(object) { return Object.entries(object || {}).sort((a, b) => b[1] - a[1]); }

function gauge(name, budget, byOwner, minimum, measured) {
  const list = owners(byOwner), total = list.reduce((sum, [, size]) => sum + size, 0), full = Math.max(budget, total, measured || 0);
  const over = total > budget;
  const text = list.map(([owner, size]) => `${owner} ${bytes(size)}`).join(", ");
  const bar = h("div", { class: "bar", role: "img", "aria-label": `${name}: ${bytes(total)} of ${bytes(budget)}: ${text}` },
    list.map(([owner, size], i) => h("i", { style: `width:${100 * size / full}%;background:${colour(i)}`, title: `${owner} ${bytes(size)}` })));
  const marks = h("div", { class: "marks", "aria-hidden": "true" });
  const mark = (size, label) => { if (size) marks.append(h("i", { style: `left:${100 * size / full}%` }), h("span", { style: `left:clamp(2rem, ${100 * size / full}%, calc(100% - 2rem))` }, label)); };
  const apart = measured && Math.abs(measured - minimum) / full > 0.16;
  if (minimum && minimum < full) mark(minimum, "minimum");
  if (apart || !minimum) mark(measured, "measured");
  const element = h("div", { class: "gauge" },
    h("div", { class: "label" }, h("b", {}, name), h("span", {}, h("b", { class: over ? "bad" : "" }, bytes(total)), ` planned of ${bytes(budget)}`, measured ? ` · ${bytes(measured)} measured` : "", minimum ? ` · minimum ${bytes(minimum)}` : "")),
    bar, marks, legend(list.map(([owner, size], i) => [owner, bytes(size), colour(i)])));
  element.chartData = { budget, total, owners: Object.fromEntries(list) };
  return element;
}

function budgetSection(run) {
  const plan = run.plan, measured = run.report && run.report.measured_peak_rss_bytes;
  if (!plan.device_by_owner) return [gauge("Host memory", plan.host_budget_bytes, plan.by_owner, plan.min_bytes, measured)];
  // The minimum of the device offloads to the host, which then needs more than this plan: it is no minimum of the host by itself.
  return [
    gauge(`Device memory · ${plan.device}`, plan.device_budget_bytes, plan.device_by_owner, plan.min_device_bytes),
    plan.min_device_bytes ? h("p", { class: "soft small" }, `The minimum of the device, ${bytes(plan.min_device_bytes)}, takes ${bytes(plan.min_bytes)} of host memory.`) : null,
    gauge("Host memory", plan.host_budget_bytes, plan.by_owner, null, measured),
  ];
}

const STRATEGIES = {
  recompute: "Activations are computed a second time instead of being held.",
  split: "The largest layers are computed in slices of their rows.",
  microbatch: "A batch is computed in micro-batches, and gradients are accumulated.",
  microbatch_batchnorm: "Batch normalization uses the statistics of micro-batches.",
  offload: "Tensors wait in host memory or in a file until they are needed.",
  mixed_precision: "Activations have 16 bits.",
  state_8bit: "Optimizer state has 8 bits.",
};

function strategySection(run) {
  const plan = run.plan;
  const facts = [
    [plan.accumulation_steps > 1 ? `${plan.accumulation_steps} × ${plan.micro_batch}` : count(plan.batch), plan.accumulation_steps > 1 ? "micro-batches of rows" : "rows, whole batches"],
    [plan.precision, "precision" + (plan.optimizer_state_bits === 8 ? ", 8-bit optimizer state" : "")],
    [bytes(plan.arena_bytes), `arena, lower bound ${bytes(plan.lower_bound_bytes)}`],
    [seconds(plan.predicted_step_s), `per step predicted, by ${plan.predicted_by}`],
  ];
  const measured = run.report && run.report.measured_step_s;
  if (measured) facts.push([seconds(measured), "per step measured"]);
  const parts = [h("div", { class: "stats" }, facts.map(([value, label]) => stat(value, label)))];
  const details = {
    recompute: `${count(plan.recomputed)} ops, +${percent(plan.recompute_flops_ratio)} FLOPs`,
    split: plan.split && `${plan.split.layers.join(", ")} in ${plan.split.pieces} pieces, ${bytes(plan.split.saved_bytes)} less arena`,
    microbatch: `${plan.accumulation_steps} micro-batches of ${plan.micro_batch} rows`,
    offload: `${bytes(plan.offload_bytes)} elsewhere, ${bytes(plan.offload_copied_bytes)} copied per step`,
  };
  if (plan.choices.length > 0) {
    parts.push(h("h3", {}, "What each choice saves and costs"), table(plan.choices, [
      ["choice", c => c.used.join(" + ") || "–"],
      ["what it does", c => c.used.map(name => STRATEGIES[name]).concat(c.used.map(name => details[name]).filter(Boolean)).join(" ")],
      ["memory", c => c.saved_bytes >= 0 ? bytes(c.saved_bytes) + " less" : bytes(-c.saved_bytes) + " more", c => c.saved_bytes, true],
      ["time per step", c => (c.added_step_s >= 0 ? "+" : "−") + seconds(Math.abs(c.added_step_s)), c => c.added_step_s, true],
    ], { caption: "Choices of the planner", wrap: 1 }));
  } else {
    const used = plan.used.map(name => h("li", {}, h("b", {}, name), ": ", STRATEGIES[name] || "", details[name] ? " " + details[name] + "." : ""));
    parts.push(used.length ? h("ul", {}, used) : h("p", { class: "soft" }, "The run fits as it is described: nothing is recomputed, split or offloaded."));
  }
  const changed = plan.results_unchanged ? "Results are those of a run without a budget, bit for bit." : plan.sums_reordered && plan.used.every(name => !["mixed_precision", "state_8bit", "microbatch_batchnorm"].includes(name)) ? "Results are those of a run without a budget, up to the order of sums." : "Results differ from those of a run without a budget, as was allowed.";
  parts.push(h("p", { class: "soft" }, changed, ` Allowed: ${plan.allow.replaceAll(",", ", ")}.`));
  if (run.curve) {
    const points = run.curve.points.map(p => [p.budget_bytes, p.predicted_step_s]).reverse();
    const chart = lineChart({ id: "curve", title: "Step time under smaller budgets", unit: "predicted", xName: `${run.curve.space} memory budget`, xFormat: bytes, steps: true, ratio: 0.36, wide: true, series: [{ name: "step time", points, colour: colour(0) }], format: seconds });
    parts.push(h("h3", {}, "Smaller budgets"), chart, table(run.curve.points, [
      [`${run.curve.space} budget`, p => bytes(p.budget_bytes), p => p.budget_bytes, true],
      ["step time", p => seconds(p.predicted_step_s), p => p.predicted_step_s, true],
      ["micro-batch", p => count(p.micro_batch), p => p.micro_batch, true],
      ["strategy", p => p.used.join(", ") || "none"],
    ], { caption: "Plans under smaller budgets" }));
  }
  return parts;
}

function refusalSection(run) {
  const refusal = run.refusal;
  if (!refusal) return [];
  const budget = refusal.host_budget_bytes || refusal.device_budget_bytes;
  return [
    h("div", { class: "stats" }, stat(bytes(budget), `budget of ${refusal.space}`), stat(bytes(refusal.min_bytes), "minimum budget"), stat(bytes(refusal.min_bytes - budget), "missing")),
    h("h3", {}, "What holds the memory at the minimum"), gauge("Smallest plan", refusal.min_bytes, refusal.by_owner),
    h("h3", {}, "The cheapest changes"),
    table(refusal.changes, [
      ["change", c => c.what],
      ["new peak", c => `${bytes(c.peak_bytes)} (${count(c.peak_bytes)} bytes)`, c => c.peak_bytes, true],
      [`fits ${bytes(budget)}`, c => c.fits ? h("span", { class: "good" }, "yes") : "no"],
      ["flag", c => h("code", {}, c.flag)],
      ["results", c => c.same_results ? "unchanged" : "change"],
      ["time per row", c => seconds(c.seconds_per_row), c => c.seconds_per_row, true],
    ], { caption: "Changes and their exact peaks", wrap: 0 }),
  ];
}
