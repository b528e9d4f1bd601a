// Curves of the run, its pipeline, the first rows, and predictions by class.
const NOT_SCORES = new Set(["epoch", "learning_rate", "seconds", "examples_per_s", "left_out", "metrics", "resident_bytes"]);

function scoreNames(runs) {
  const names = [];
  for (const run of runs) for (const line of run.log || []) for (const key of Object.keys(line)) {
    const name = key.startsWith("val_") ? key.slice(4) : key;
    if (!NOT_SCORES.has(key) && typeof line[key] === "number" && !names.includes(name)) names.push(name);
  }
  return names.sort((a, b) => (b === "loss") - (a === "loss"));
}

function curveCharts(runs) {
  const several = runs.length > 1, label = (r, name) => several ? `${NAMES_AB[r]} ${name}` : name;
  const points = (run, key) => (run.log || []).filter(line => typeof line[key] === "number").map(line => [line.epoch, line[key]]);
  const charts = [];
  for (const name of scoreNames(runs)) {
    const series = runs.flatMap((run, r) => [
      { name: label(r, "training"), points: points(run, name), colour: colour(several ? 2 * r : 0) },
      { name: label(r, "validation"), points: points(run, "val_" + name), colour: colour(several ? 2 * r + 1 : 1), dash: several },
    ]);
    charts.push(lineChart({ id: "curve-" + name, title: name[0].toUpperCase() + name.slice(1), series }));
  }
  const single = (id, title, unit, of, format) => charts.push(lineChart({ id, title, unit, format, series: runs.map((run, r) => ({ name: label(r, title.toLowerCase()), points: (run.log || []).map(line => [line.epoch, of(line, run)]).filter(p => p[1] != null && isFinite(p[1])), colour: colour(several ? 2 * r : 0) })) }));
  single("curve-rate", "Learning rate", "", line => line.learning_rate);
  single("curve-throughput", "Throughput", "examples/s", line => line.examples_per_s);
  single("curve-step", "Step time", "with input", (line, run) => run.plan.batch / line.examples_per_s, seconds);
  const resident = runs.map((run, r) => ({ name: label(r, "resident"), points: points(run, "resident_bytes"), colour: colour(several ? 2 * r : 0) }));
  const limits = runs.flatMap((run, r) => [{ name: label(r, "budget"), y: run.plan.host_budget_bytes }].filter(limit => limit.y < 8 * Math.max(1, ...resident[r].points.map(p => p[1]))));
  const far = runs.map((run, r) => limits.some(limit => limit.name === label(r, "budget")) ? null : label(r, `budget ${bytes(run.plan.host_budget_bytes)}`)).filter(Boolean);
  charts.push(lineChart({ id: "curve-memory", title: "Resident memory", unit: far.length ? `of the process; ${far.join(", ")}` : "against the host budget", series: resident, limits, format: bytes, base2: true }));
  return charts.filter(Boolean);
}

// Within epochs, where a run has few of them.
function progressChart(runs) {
  const series = runs.map((run, r) => ({ name: runs.length > 1 ? `${NAMES_AB[r]} loss` : "loss", colour: colour(2 * r), points: (run.progress || []).filter(line => line.steps > 0 && line.loss != null).map(line => [(line.epoch - 1) * line.steps + line.step, line.loss]) })).filter(s => s.points.length > 1);
  return series.length ? lineChart({ id: "curve-progress", title: "Loss within epochs", unit: "mean since the epoch began", xName: "step", series, ratio: 0.3, wide: true }) : null;
}

function curvesSection(runs) {
  const charts = curveCharts(runs);
  if (charts.length === 0) return [];
  const progress = progressChart(runs);
  const tables = runs.map((run, r) => {
    const log = run.log || [], names = scoreNames([run]);
    const columns = [["epoch", line => count(line.epoch), line => line.epoch, true]];
    for (const name of names) for (const key of [name, "val_" + name]) if (log.some(line => line[key] != null)) columns.push([key, line => line[key] == null ? "–" : String(+line[key].toPrecision(5)), line => line[key], true]);
    columns.push(["learning rate", line => short(line.learning_rate), line => line.learning_rate, true], ["examples/s", line => count(line.examples_per_s), line => line.examples_per_s, true], ["seconds", line => digits(line.seconds), line => line.seconds, true], ["resident", line => bytes(line.resident_bytes), line => line.resident_bytes, true]);
    return h("details", {}, h("summary", {}, runs.length > 1 ? `All numbers of ${NAMES_AB[r]}` : "All numbers"), table(log, columns, { caption: "Scores by epoch" }));
  });
  return [h("div", { class: "grid two" }, charts), progress ? h("div", { style: "margin-top:16px" }, progress) : null, ...tables];
}

function pixelsOf(text) { const raw = atob(text), out = new Uint8Array(raw.length); for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i); return out; }
function picture(text, [height, width, channels], label) {
  const canvas = h("canvas", { width, height, role: "img", "aria-label": label }), pixels = pixelsOf(text), image = new ImageData(width, height);
  for (let i = 0; i < height * width; i++) { for (let c = 0; c < 3; c++) image.data[4 * i + c] = pixels[i * channels + c % channels]; image.data[4 * i + 3] = 255; }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}
function className(names, index) { return names && names[index] != null ? names[index] : String(index); }

function sampleGrid(samples) {
  const image = samples.columns.find(column => column.image), label = samples.columns.find(column => column.label && column !== image);
  const name = row => label ? className(samples.classes, label.rows[row][0]) : `row ${row + 1}`;
  if (image) return h("ul", { class: "samples" }, image.rows.map((text, row) => h("li", {}, picture(text, image.image, `row ${row + 1} of the first batch, ${name(row)}`), h("b", {}, name(row)))));
  const rows = samples.columns[0] ? samples.columns[0].rows.map((_, row) => row) : [];
  const cell = (column, row) => { const values = column.rows[row], more = column.shape.reduce((a, b) => a * b, 1) > values.length ? ", …" : ""; return column.label && values.length === 1 ? className(samples.classes, values[0]) : values.map(short).join(", ") + more; };
  return table(rows, [["row", row => count(row + 1), null, true], ...samples.columns.map(column => [column.name, row => cell(column, row)])], { caption: "Rows of the first batch" });
}

let matrices = 0;
function confusion(classes) {
  const n = classes.labels.length, parts = [], right = classes.right.reduce((a, b) => a + b, 0);
  parts.push(h("h3", {}, "Predictions by class"), h("p", { class: "soft" }, `${percent(right / Math.max(classes.rows, 1))} of ${count(classes.rows)} validation rows${classes.every > 1 ? `, one of every ${count(classes.every)},` : ""} are predicted right. Rows are labels, columns predictions.`));
  if (classes.matrix.length && n <= 24) {
    const most = Math.max(...classes.matrix, 1);
    const cell = (i, j) => {
      const value = classes.matrix[i * n + j], share = Math.sqrt(value / most);
      const tint = value === 0 ? "" : `background:color-mix(in srgb, ${i === j ? "var(--c2)" : "var(--c7)"} ${Math.round(12 + 38 * share)}%, var(--card))`;
      return h("td", { style: tint }, value || "");
    };
    const grid = h("div", { class: "scroll matrix", tabindex: 0, role: "region", "aria-label": `Confusion matrix of ${count(classes.rows)} rows${++matrices > 1 ? ", " + matrices : ""}` }, h("table", {}, h("thead", {}, h("tr", {}, h("td", {}), classes.labels.map((_, j) => h("th", { scope: "col" }, className(classes.names, j))))), h("tbody", {}, classes.labels.map((_, i) => h("tr", {}, h("th", { scope: "row" }, className(classes.names, i)), classes.labels.map((_, j) => cell(i, j)))))));
    grid.chartData = { confusion: classes.matrix, classes: n };
    parts.push(grid);
  } else {
    const rows = classes.labels.map((total, i) => ({ i, total, right: classes.right[i] })).filter(row => row.total > 0).sort((a, b) => a.right / a.total - b.right / b.total);
    parts.push(table(rows, [["class", row => className(classes.names, row.i)], ["rows", row => count(row.total), row => row.total, true], ["right", row => percent(row.right / row.total), row => row.right / row.total, true]], { caption: "Accuracy by class" }));
  }
  return parts;
}

function worstRows(worst, names) {
  if (!worst.rows.length) return [];
  const text = row => [h("b", {}, className(names, row.label)), row.label === row.predicted ? `: right, ${percent(row.probability)}` : `: predicted ${className(names, row.predicted)}, ${percent(row.probability)}`];
  const caption = row => `row ${row.row + 1}${row.name ? ", " + row.name : ""}: ${className(names, row.label)}, predicted ${className(names, row.predicted)}`;
  return [h("h3", {}, "Rows with the largest loss"), worst.image
    ? h("ul", { class: "samples" }, worst.rows.map(row => h("li", {}, picture(row.pixels, worst.image, caption(row)), text(row), h("br", {}), `loss ${short(row.loss)}`)))
    : table(worst.rows, [["row", row => count(row.row + 1), row => row.row, true], ["label", row => className(names, row.label)], ["predicted", row => className(names, row.predicted)], ["probability", row => percent(row.probability), row => row.probability, true], ["loss", row => short(row.loss), row => row.loss, true]], { caption: "Rows with the largest loss" })];
}

function pipelineSection(run) {
  const parts = [], data = run.plan.data, measured = (run.report && run.report.pipeline) || (run.profile && run.profile.pipeline);
  if (data && data.training) parts.push(h("p", {}, h("b", {}, "Training: "), data.training.pipeline, data.validation ? [h("br", {}), h("b", {}, "Validation: "), data.validation.pipeline] : null));
  const stages = measured ? measured.stages : Object.entries(run.plan.pipeline || {}).map(([name, size]) => ({ name, bytes: size }));
  const listed = stages.length ? table(stages, [
    ["stage", stage => stage.name],
    ["memory", stage => bytes(stage.bytes), stage => stage.bytes, true],
    ...(measured ? [["time per row", stage => stage.row_s == null ? "–" : seconds(stage.row_s), stage => stage.row_s, true], ["busy", stage => stage.busy == null ? "–" : percent(stage.busy), stage => stage.busy, true], ["threads", stage => stage.threads ? count(stage.threads) : "–", stage => stage.threads, true]] : []),
  ], { caption: "Stages of the input pipeline" }) : null;
  if (listed) { listed.chartData = { stages }; parts.push(listed); }
  if (measured) parts.push(h("p", { class: "soft" }, `Limited by ${measured.limit}. ${measured.active_workers} of ${measured.workers} threads and ${measured.slots_in_use} of ${measured.slots} slots were in use; the consumer waited ${percent(measured.consumer_waited)} of the time.`));
  if (run.samples) parts.push(h("h3", {}, "The first batch, as the model gets it"), sampleGrid(run.samples));
  if (run.classes) parts.push(...confusion(run.classes));
  if (run.worst) parts.push(...worstRows(run.worst, run.classes && run.classes.names));
  return parts;
}
