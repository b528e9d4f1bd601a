// Hot spots, the model, and two runs side by side.
// What would shrink a tensor at the peak.
function advice(timeline, i, plan) {
  const { memory, program } = timeline, kind = memory.names[program.kind[i]], type = memory.names[program.type[i]], size = timeline.size[i];
  if (size < timeline.peak / 100) return "–";
  const long = timeline.last[i] - timeline.first[i] > timeline.T / 4, allowed = name => plan.allow.split(",").includes(name);
  const rows = Math.floor(plan.micro_batch / 2), half = type.includes("B") && rows > 0 ? `--micro-batch ${rows}: ${bytes(size - size * rows / plan.micro_batch)} less` : "";
  const advised = [];
  if (kind === "workspace") advised.push("scratch memory, live during this op only");
  else if (kind === "gradient" && !type.includes("B")) advised.push("the gradient of a weight: a smaller layer");
  else if (kind === "activation" && long && !plan.used.includes("recompute")) advised.push(allowed("recompute") ? `recomputed under a smaller budget: up to ${bytes(size)} less` : `--allow recompute: up to ${bytes(size)} less`);
  else if (!allowed("mixed_precision") && type.startsWith("f32") && type.includes("B")) advised.push(`--allow mixed_precision: ${bytes(size / 2)} less`);
  return advised.concat(half || []).join("; or ") || "–";
}

function hotSpots(run) {
  const memory = run.memory;
  if (!memory || !memory.programs.length) return [];
  const program = memory.programs.reduce((best, program) => program.arena_bytes > best.arena_bytes ? program : best);
  const timeline = Timeline(memory, program), live = liveAt(timeline, timeline.peakStep), total = Math.max(timeline.peak, 1);
  const layers = new Map();
  for (const i of live) { const name = layerOf(memory.names[program.owner[i]]); layers.set(name, (layers.get(name) || 0) + timeline.size[i]); }
  const ranked = [...layers.entries()].sort((a, b) => b[1] - a[1]).slice(0, 12);
  const share = value => [h("span", { class: "share", style: `width:${Math.max(2, Math.round(60 * value / total))}px`, "aria-hidden": "true" }), " " + percent(value / total)];
  const element = [
    h("p", {}, `The ${ROLE_NAMES[program.role] || program.role} holds ${bytes(timeline.peak)} in ${count(live.length)} buffers at op ${count(timeline.peakStep)}, ${opName(timeline, timeline.peakStep)}.`),
    h("h3", {}, "Largest tensors at the peak"),
    table(live.slice(0, 12), [
      ["tensor", i => bufferName(timeline, i)],
      ["bytes", i => bytes(timeline.size[i]), i => timeline.size[i], true],
      ["share", i => share(timeline.size[i]), i => timeline.size[i]],
      ["produced by", i => opName(timeline, timeline.first[i])], ["last read by", i => opName(timeline, timeline.last[i])],
      ["what would shrink it", i => advice(timeline, i, run.plan)],
    ], { caption: "Largest tensors at the peak", wrap: 0 }),
    h("h3", {}, "Largest layers at the peak"),
    table(ranked, [["layer", row => row[0]], ["bytes", row => bytes(row[1]), row => row[1], true], ["share", row => share(row[1]), row => row[1]]], { caption: "Largest layers at the peak", wrap: 0 }),
  ];
  element[2].chartData = { peak: timeline.peak, layers: Object.fromEntries(layers) };
  return element;
}

function modelSection(run) {
  const memory = run.memory;
  if (run.unknown) return [h("p", { class: "soft" }, "Tensor types, FLOPs and layers follow from the configuration and the data, which cannot be read here: ", run.unknown)];
  if (!memory || !memory.layers.length) return [];
  const training = memory.programs.find(program => program.role === "step") || memory.programs[0];
  const flops = new Map(), moved = new Map(), held = new Map();
  // What a scope has counts for every layer it is in.
  const add = (map, scope, value) => { for (let end = scope.length; end > 0; end = scope.lastIndexOf("/", end - 1)) { const layer = scope.slice(0, end); map.set(layer, (map.get(layer) || 0) + value); } };
  training.op.forEach((_, step) => { const scope = memory.names[training.scope[step]]; add(flops, scope, training.flops[step]); add(moved, scope, training.moved[step]); });
  training.size.forEach((size, i) => { if (memory.names[training.kind[i]] === "activation") add(held, memory.names[training.owner[i]], size); });
  const within = (map, layer) => map.get(layer) || 0;
  const rows = memory.layers.map(([layer, kind, output, parameters, frozen]) => ({ layer, kind, output, parameters, frozen, flops: within(flops, layer), moved: within(moved, layer), held: within(held, layer) }));
  const sum = key => rows.reduce((total, row) => total + row[key], 0);
  const element = table(rows, [
    ["layer", row => row.layer], ["type", row => row.kind], ["output", row => row.output.replaceAll(" ", "\u00a0")],
    ["parameters", row => count(row.parameters) + (row.frozen ? ` + ${count(row.frozen)}` : ""), row => row.parameters, true],
    ["FLOPs per step", row => short(row.flops), row => row.flops, true], ["bytes moved", row => bytes(row.moved), row => row.moved, true], ["activations", row => bytes(row.held), row => row.held, true],
  ], { caption: "Layers of the model", wrap: 0 });
  element.chartData = { layers: memory.layers.map(layer => layer[0]) };
  return [h("div", { class: "stats" }, stat(count(sum("parameters")), "trainable parameters"), stat(count(sum("frozen")), "other parameters"), stat(short(run.plan.flops_per_step), "FLOPs per step"), stat(count(rows.length), "layers")), element];
}

function sparsitySection(run) {
  const weights = run.report && run.report.sparsity;
  if (!weights || !weights.length) return [];
  const sum = key => weights.reduce((total, weight) => total + weight[key], 0);
  const percent = weight => `${(100 * weight.zeros / weight.numbers).toFixed(1)} %`;
  const element = table(weights, [
    ["weight", row => row.weight], ["zeros", row => count(row.zeros), row => row.zeros, true],
    ["numbers", row => count(row.numbers), row => row.numbers, true], ["sparsity", percent, row => row.zeros / row.numbers, true],
  ], { caption: "Pruned weights", wrap: 0 });
  return [h("div", { class: "stats" }, stat(percent({ zeros: sum("zeros"), numbers: sum("numbers") }), "of the pruned weights are zero"), stat(count(weights.length), "pruned weights")), element];
}

function compareSection(runs) {
  const [a, b] = runs;
  const last = run => run.log && run.log.length ? run.log[run.log.length - 1] : {};
  const rows = [
    ["planned peak", run => run.plan.peak_bytes.host, bytes], ["device peak", run => run.plan.peak_bytes.device || null, bytes], ["host budget", run => run.plan.host_budget_bytes, bytes],
    ["minimum budget", run => run.plan.min_bytes, bytes], ["measured peak", run => run.report && run.report.measured_peak_rss_bytes, bytes], ["arena", run => run.plan.arena_bytes, bytes],
    ["batch", run => run.plan.batch, count], ["micro-batch", run => run.plan.micro_batch, count], ["FLOPs per step", run => run.plan.flops_per_step, short],
    ["predicted step", run => run.plan.predicted_step_s, seconds], ["measured step", run => run.report && run.report.measured_step_s, seconds], ["examples/s", run => run.report && run.report.examples_per_s, count],
    ...scoreNames(runs).flatMap(name => [[name, run => last(run)[name], short], ["val_" + name, run => last(run)["val_" + name], short]]),
  ].filter(([, of]) => of(a) != null || of(b) != null);
  const difference = of => { const x = of(a), y = of(b); return x == null || y == null || x === 0 ? "–" : (y >= x ? "+" : "−") + percent(Math.abs(y / x - 1)); };
  const element = table(rows, [["figure", row => row[0]], [`A · ${a.name}`, row => row[1](a) == null ? "–" : row[2](row[1](a)), null, true], [`B · ${b.name}`, row => row[1](b) == null ? "–" : row[2](row[1](b)), null, true], ["B against A", row => difference(row[1]), null, true]], { caption: "Both runs in numbers" });
  element.classList.remove("tall");
  const keys = run => Object.fromEntries((run.config || "").split("\n").reduce((state, line) => { const table = line.match(/^\[(.+)\]$/); if (table) state.table = table[1] + "."; else if (line.includes("=")) { const at = line.indexOf("="); state.list.push([state.table + line.slice(0, at).trim(), line.slice(at + 1).trim()]); } return state; }, { table: "", list: [] }).list);
  const ka = keys(a), kb = keys(b), different = [...new Set([...Object.keys(ka), ...Object.keys(kb)])].filter(key => ka[key] !== kb[key]);
  return [element, different.length ? [h("h3", {}, "Keys that differ"), table(different, [["key", key => h("code", {}, key)], ["A", key => ka[key] || "–"], ["B", key => kb[key] || "–"]], { caption: "Configuration keys that differ", wrap: 0 })] : h("p", { class: "soft" }, "Their configurations are the same.")].flat();
}
