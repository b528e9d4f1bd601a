// The memory of a program: live bytes by layer over its steps, and the largest tensors at any of them.

// The buffers of a program as typed arrays, their layers in groups, and the bytes of every group at every step.
function Timeline(memory, program) {
  const T = program.op.length, N = program.size.length;
  const first = Uint32Array.from(program.first), last = Uint32Array.from(program.last), size = Float64Array.from(program.size), offset = Float64Array.from(program.offset);
  const live = new Float64Array(T + 1);
  for (let i = 0; i < N; i++) { live[first[i]] += size[i]; live[Math.min(last[i] + 1, T)] -= size[i]; }
  for (let t = 1; t <= T; t++) live[t] += live[t - 1];
  let peakStep = 0;
  for (let t = 1; t < T; t++) if (live[t] > live[peakStep]) peakStep = t;
  const weight = new Map(), begins = new Map(), layer = i => layerOf(memory.names[program.owner[i]]);
  for (let i = 0; i < N; i++) {
    const name = layer(i), atPeak = first[i] <= peakStep && peakStep <= last[i];
    weight.set(name, (weight.get(name) || 0) + size[i] * (atPeak ? 1e6 : 1e-6 * (last[i] - first[i] + 1)));
    begins.set(name, Math.min(begins.has(name) ? begins.get(name) : T, first[i]));
  }
  const { names, index } = groupsOf(weight, begins);
  const group = new Uint8Array(N);
  const bands = names.map(() => new Float64Array(T + 1));
  for (let i = 0; i < N; i++) {
    const g = group[i] = index.get(layer(i));
    bands[g][first[i]] += size[i];
    bands[g][Math.min(last[i] + 1, T)] -= size[i];
  }
  for (const band of bands) for (let t = 1; t <= T; t++) band[t] += band[t - 1];
  return { memory, program, T, N, first, last, size, offset, live, peakStep, peak: live[peakStep] || 0, names, group, bands };
}
// At most twelve groups of layers: each layer by itself; or the largest, if they hold most, and all others; or blocks by the beginning of their
// names; or stretches of the network with about the same weight.
function groupsOf(weight, begins) {
  const byWeight = [...weight.keys()].sort((a, b) => weight.get(b) - weight.get(a)), index = new Map();
  if (byWeight.length <= PALETTE) { byWeight.forEach((name, i) => index.set(name, i)); return { names: byWeight, index }; }
  const total = [...weight.values()].reduce((sum, value) => sum + value, 0), large = byWeight.slice(0, PALETTE - 1);
  if (large.reduce((sum, name) => sum + weight.get(name), 0) > 0.9 * total) {
    byWeight.forEach((name, i) => index.set(name, Math.min(i, PALETTE - 1)));
    return { names: [...large, "other layers"], index };
  }
  const deepest = Math.max(...byWeight.map(name => name.split("/").length));
  for (let depth = deepest - 1; depth > 0; depth--) {
    const block = name => name.split("/").slice(0, depth).join("/");
    const blocks = [...new Set(byWeight.map(block))];
    if (blocks.length >= 3 && blocks.length <= PALETTE) { byWeight.forEach(name => index.set(name, blocks.indexOf(block(name)))); return { names: blocks, index }; }
  }
  const inOrder = [...byWeight].sort((a, b) => begins.get(a) - begins.get(b));
  const stretches = [];
  let sum = 0;
  for (const name of inOrder) {
    const g = Math.min(PALETTE - 1, Math.floor(sum / total * PALETTE));
    if (!stretches.length || stretches[stretches.length - 1].g !== g) stretches.push({ g, from: name, to: name });
    stretches[stretches.length - 1].to = name;
    index.set(name, stretches.length - 1);
    sum += weight.get(name);
  }
  return { names: stretches.map(({ from, to }) => from === to ? from : `${from} … ${to}`), index };
}
function layerOf(owner) { return owner === "" ? "other" : owner; }
// Numbers of ops on an axis; the last is left out for the name of the axis.
function opTicks(from, to, width) { return roundTicks(from, to, Math.min(8, width / 80)).filter(tick => Number.isInteger(tick) && tick < to - (to - from) * 40 / width); }
function opName(timeline, step) {
  const { memory, program } = timeline;
  if (step >= timeline.T) return "the end";
  const scope = memory.names[program.scope[step]], op = memory.names[program.op[step]];
  return scope ? `${op} of ${scope}` : op;
}
function bufferName(timeline, i) {
  const { memory, program } = timeline, type = memory.names[program.type[i]];
  return `${layerOf(memory.names[program.owner[i]])} ${memory.names[program.kind[i]]}${type ? " " + type : ""}`;
}
function bufferDetail(timeline, i) {
  return [h("b", {}, bufferName(timeline, i)), ` · ${bytes(timeline.size[i])} at offset ${count(timeline.offset[i])}, live from op ${count(timeline.first[i])} to ${count(timeline.last[i])}, produced by ${opName(timeline, timeline.first[i])}, last read by ${opName(timeline, timeline.last[i])}`];
}
function bufferLines(timeline, i) {
  return [bufferName(timeline, i), bytes(timeline.size[i]), `produced by ${opName(timeline, timeline.first[i])}`, `last read by ${opName(timeline, timeline.last[i])}`];
}
function liveAt(timeline, step) {
  const found = [];
  for (let i = 0; i < timeline.N; i++) if (timeline.first[i] <= step && step <= timeline.last[i]) found.push(i);
  return found.sort((a, b) => timeline.size[b] - timeline.size[a]);
}

// The stacked chart, with a cursor over the steps.
function timelineChart(timeline, detail) {
  const L = 62, R = 10, T = 24, B = 22, HEIGHT = 300;
  let step = timeline.peakStep;
  const arena = timeline.program.arena_bytes, high = Math.max(arena, timeline.peak, 1);
  const X = (t, width) => L + t / Math.max(timeline.T, 1) * (width - L - R);
  const canvas = plot(HEIGHT, (context, width, height) => {
    const Y = y => T + (1 - y / (high * 1.04)) * (height - T - B);
    context.font = `11px ${css("--font")}`;
    context.textBaseline = "middle";
    for (const tick of roundTicks(0, high, 4, true)) {
      context.fillStyle = css("--line");
      context.fillRect(L, Math.round(Y(tick)), width - L - R, 1);
      context.fillStyle = css("--soft");
      context.textAlign = "right";
      context.fillText(bytes(tick), L - 8, Y(tick));
    }
    const columns = Math.max(1, Math.floor(width - L - R)), base = new Float64Array(columns);
    // Every column of pixels shows the fullest of its steps.
    const at = new Uint32Array(columns);
    for (let c = 0; c < columns; c++) {
      const from = Math.floor(c * timeline.T / columns), to = Math.max(from + 1, Math.floor((c + 1) * timeline.T / columns));
      let best = Math.min(from, timeline.T - 1);
      for (let t = from + 1; t < Math.min(to, timeline.T); t++) if (timeline.live[t] > timeline.live[best]) best = t;
      at[c] = best;
    }
    timeline.bands.forEach((band, g) => {
      context.fillStyle = css(`--c${g}`);
      for (let c = 0; c < columns; c++) {
        const value = band[at[c]];
        if (value <= 0) continue;
        const y0 = Y(base[c]), y1 = Y(base[c] + value);
        context.fillRect(L + c, y1, 1, y0 - y1);
        base[c] += value;
      }
    });
    context.textAlign = "left";
    context.fillStyle = css("--soft");
    context.textBaseline = "alphabetic";
    for (const tick of opTicks(0, timeline.T, width)) context.fillText(count(tick), X(tick, width), height - 6);
    context.textAlign = "right";
    context.fillText("op", width - R, height - 6);
    context.strokeStyle = css("--bad");
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(L, Y(arena));
    context.lineTo(width - R, Y(arena));
    context.stroke();
    context.setLineDash([]);
    const peakX = X(timeline.peakStep + 0.5, width);
    context.strokeStyle = context.fillStyle = css("--ink");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(peakX, Y(timeline.peak));
    context.lineTo(peakX, T - 6);
    context.stroke();
    context.textAlign = peakX > width / 2 ? "right" : "left";
    context.fillText(`peak ${bytes(timeline.peak)}`, peakX + (peakX > width / 2 ? -6 : 6), T - 8);
    const cursorX = X(step + 0.5, width);
    context.strokeStyle = css("--soft");
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(cursorX, T);
    context.lineTo(cursorX, height - B);
    context.stroke();
    context.setLineDash([]);
  }, { tabindex: 0, role: "slider", "aria-label": "Live memory over the ops of the program", "aria-valuemin": 0, "aria-valuemax": Math.max(timeline.T - 1, 0), "aria-valuenow": step });
  const select = (to, tell) => {
    step = Math.max(0, Math.min(timeline.T - 1, to));
    canvas.setAttribute("aria-valuenow", step);
    canvas.setAttribute("aria-valuetext", `op ${step}, ${opName(timeline, step)}, ${bytes(timeline.live[step])} live`);
    const live = liveAt(timeline, step);
    detail.replaceChildren(h("p", {}, h("b", {}, `Op ${count(step)}`), ` · ${opName(timeline, step)} · ${bytes(timeline.live[step])} live in ${count(live.length)} buffers`),
      h("ol", {}, live.slice(0, 5).map(i => h("li", {}, bufferDetail(timeline, i)))));
    canvas.paint();
    if (!tell) return;
    // The layer under the pointer, with its largest tensor; above all layers, the largest of all.
    let under = -1, base = 0;
    for (let g = 0; g < timeline.bands.length && under < 0; g++) { base += timeline.bands[g][step]; if (tell[2] < base) under = g; }
    const shown = live.find(i => under < 0 || timeline.group[i] === under);
    const lines = [`op ${count(step)}: ${opName(timeline, step)}`, `${bytes(timeline.live[step])} live in ${count(live.length)} buffers`];
    if (under >= 0) lines.push(`${timeline.names[under]}: ${bytes(timeline.bands[under][step])}`);
    showTip(lines.concat(shown == null ? [] : bufferLines(timeline, shown)).join("\n"), tell[0], tell[1]);
  };
  canvas.addEventListener("pointermove", event => {
    const box = canvas.getBoundingClientRect();
    const size = (1 - (event.clientY - box.top - T) / (box.height - T - B)) * high * 1.04;
    select(Math.floor((event.clientX - box.left - L) / (box.width - L - R) * timeline.T), [event.clientX, event.clientY, size]);
  });
  canvas.addEventListener("pointerleave", () => { hideTip(); select(timeline.peakStep); });
  canvas.addEventListener("keydown", event => {
    const by = Math.max(1, Math.round(timeline.T / 100));
    const to = { ArrowLeft: step - 1, ArrowRight: step + 1, PageUp: step + by, PageDown: step - by, Home: 0, End: timeline.T - 1 }[event.key];
    if (to == null) return;
    event.preventDefault();
    select(to);
  });
  select(step);
  canvas.chartData = { role: timeline.program.role, peak: timeline.peak, peakStep: timeline.peakStep, live: timeline.live };
  return canvas;
}

const ROLE_NAMES = { step: "training step", first: "first micro-batch", middle: "middle micro-batches", last: "last micro-batch", evaluate: "evaluation", predict: "prediction" };

function memorySection(run, prefix) {
  const memory = run.memory;
  if (!memory || memory.programs.length === 0) return [];
  const fullest = memory.programs.reduce((best, program, i) => program.arena_bytes > memory.programs[best].arena_bytes ? i : best, 0);
  const holder = h("div", {});
  const show = which => {
    const timeline = Timeline(memory, memory.programs[which]);
    const detail = h("div", { class: "detail", "aria-live": "polite" }), picked = h("div", { class: "detail", "aria-live": "polite" });
    holder.replaceChildren(
      timelineChart(timeline, detail),
      h("p", { class: "soft small" }, "Layers, with their bytes at the peak:"),
      legend(timeline.names.map((name, g) => [name, timeline.bands[g][timeline.peakStep] > 0 ? bytes(timeline.bands[g][timeline.peakStep]) : "", colour(g)]).concat([["arena", bytes(memory.programs[which].arena_bytes), "var(--bad)", true]])),
      detail,
      h("h3", {}, "The arena: where every buffer is, and when"),
      arenaView(timeline, picked), picked);
  };
  const choice = h("select", { id: prefix + "-program", onchange: event => show(+event.target.value) },
    memory.programs.map((program, i) => h("option", { value: i, selected: i === fullest }, `${ROLE_NAMES[program.role] || program.role} · ${bytes(program.arena_bytes)}`)));
  show(fullest);
  const states = {};
  memory.states.forEach(([, owner, , size]) => { states[owner] = (states[owner] || 0) + size; });
  // On a GPU, the slots of the batches persist too.
  const slots = memory.resident_bytes - Object.values(states).reduce((sum, size) => sum + size, 0);
  if (slots > memory.resident_bytes / 100) states["batch slots and alignment"] = slots;
  return [
    h("div", { class: "tools" }, h("label", { for: prefix + "-program" }, "Program"), choice),
    holder,
    h("p", { class: "soft" }, `Beside the arena, ${bytes(memory.resident_bytes)} persist across steps: ${owners(states).map(([name, size]) => `${name} ${bytes(size)}`).join(", ")}.`),
  ];
}
