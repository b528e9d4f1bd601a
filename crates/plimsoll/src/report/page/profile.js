// The profile: time by op and by node, and the last steps with their pipeline workers and copies on one time axis.

// Slices of the last three steps, in tracks: steps, waiting for input, ops, copies, pipeline workers.
function slicesOf(profile) {
  const slices = [], kinds = [...new Set(profile.ops.map(op => op.op))], last = profile.timeline.slice(-3), spans = profile.spans;
  const from = Math.min(spans[0][1], ...last.map(step => step.begin_s)), to = Math.max(spans[spans.length - 1][2], ...last.map(step => step.end_s));
  const add = (track, start, end, name, paint) => { if (end >= from && start <= to) slices.push({ track, start: Math.max(start, from), end: Math.min(end, to), name, paint }); };
  profile.timeline.forEach((step, i) => { add("steps", step.begin_s, step.end_s, `step ${i + 1}`, 0); if (step.waited_s > 0) add("waiting for input", step.begin_s, step.begin_s + step.waited_s, `step ${i + 1} waits for input`, 7); });
  for (const [index, start, end] of spans) { const op = profile.ops[index]; add(["store", "load"].includes(op.op) ? "copies" : "ops", start, end, op.scope ? `${op.op} of ${op.scope}` : op.op, kinds.indexOf(op.op) % PALETTE); }
  for (const [worker, start, end, rows] of profile.workers || []) add(`pipeline worker ${worker + 1}`, start, end, `${count(rows)} rows`, 2);
  const order = ["steps", "waiting for input", "ops", "copies"], place = track => order.includes(track) ? order.indexOf(track) : 9;
  const tracks = [...new Set(slices.map(slice => slice.track))].sort((a, b) => place(a) - place(b) || a.localeCompare(b, "en", { numeric: true }));
  return { slices, tracks, from, to };
}

function stepTracks(profile) {
  const { slices, tracks, from, to } = slicesOf(profile), R = 10, T = 6, B = 24, ROW = 24, HEIGHT = T + B + ROW * tracks.length;
  const left = width => width < 480 ? 8 : 132, X = (time, width) => left(width) + (time - from) / (to - from) * (width - left(width) - R);
  const inOrder = [...slices].sort((a, b) => tracks.indexOf(a.track) - tracks.indexOf(b.track) || a.start - b.start);
  let picked = -1;
  const text = slice => `${slice.track}: ${slice.name}, ${seconds(slice.end - slice.start)}`;
  const canvas = plot(HEIGHT, (context, width, height) => {
    const L = left(width);
    context.font = `11px ${css("--font")}`;
    context.textBaseline = "middle";
    tracks.forEach((track, row) => { context.fillStyle = css("--track"); context.fillRect(L, T + row * ROW + 2, width - L - R, ROW - 4); });
    for (const slice of slices) {
      const x = X(slice.start, width), row = tracks.indexOf(slice.track);
      context.fillStyle = css(`--c${slice.paint}`);
      context.fillRect(x, T + row * ROW + 2, Math.max(X(slice.end, width) - x - 0.5, 1), ROW - 4);
    }
    if (picked >= 0) { const slice = inOrder[picked], x = X(slice.start, width); context.strokeStyle = css("--ink"); context.lineWidth = 2; context.strokeRect(x, T + tracks.indexOf(slice.track) * ROW + 2, Math.max(X(slice.end, width) - x, 2), ROW - 4); }
    context.fillStyle = css("--soft");
    if (L > 100) tracks.forEach((track, row) => context.fillText(track, 0, T + row * ROW + ROW / 2));
    context.textBaseline = "alphabetic";
    for (const tick of roundTicks(0, to - from, Math.min(6, width / 110)).slice(0, -1)) context.fillText(seconds(tick), X(from + tick, width), height - 6);
  }, { tabindex: 0, role: "slider", "aria-label": "The last steps: ops, copies and pipeline workers over time", "aria-valuemin": 0, "aria-valuemax": inOrder.length - 1, "aria-valuenow": 0, "aria-valuetext": `${inOrder.length} slices in ${tracks.length} tracks` });
  const pick = i => {
    picked = Math.max(-1, Math.min(inOrder.length - 1, i));
    if (picked >= 0) { canvas.setAttribute("aria-valuenow", picked); canvas.setAttribute("aria-valuetext", text(inOrder[picked])); }
    canvas.paint();
  };
  canvas.addEventListener("pointermove", event => {
    const box = canvas.getBoundingClientRect(), L = left(box.width), track = tracks[Math.floor((event.clientY - box.top - T) / ROW)], time = from + (event.clientX - box.left - L) / (box.width - L - R) * (to - from), slack = (to - from) / box.width;
    const found = inOrder.findIndex(slice => slice.track === track && slice.start - slack <= time && time <= slice.end + slack);
    if (found !== picked) pick(found);
    if (found >= 0) showTip(text(inOrder[found]), event.clientX, event.clientY); else hideTip();
  });
  const leave = () => { hideTip(); pick(-1); };
  canvas.addEventListener("pointerleave", leave);
  canvas.addEventListener("blur", leave);
  canvas.addEventListener("keydown", event => {
    const move = { ArrowLeft: picked - 1, ArrowRight: picked + 1, Home: 0, End: inOrder.length - 1 }[event.key];
    if (move == null) return;
    event.preventDefault();
    pick(Math.max(0, move));
    const box = canvas.getBoundingClientRect();
    showTip(text(inOrder[picked]), box.left + X(inOrder[picked].start, box.width), box.top + T + (tracks.indexOf(inOrder[picked].track) + 1) * ROW);
  });
  canvas.id = "profile-tracks";
  canvas.chartData = { tracks: Object.fromEntries(tracks.map(track => [track, slices.filter(slice => slice.track === track).length])) };
  return h("div", {}, canvas, h("p", { class: "soft small" }, `From top to bottom: ${tracks.join(", ")}. Point at a slice, or use the arrow keys.`));
}

function profileSection(run) {
  const profile = run.profile;
  if (!profile) return [];
  const total = profile.ops.reduce((sum, op) => sum + op.seconds, 0) || 1;
  const kinds = new Map();
  for (const op of profile.ops) { const kind = kinds.get(op.op) || { op: op.op, calls: 0, seconds: 0, flops: 0, bytes: 0 }; kind.calls += 1; kind.seconds += op.seconds; kind.flops += op.flops; kind.bytes += op.bytes; kinds.set(op.op, kind); }
  const columns = [
    ["time", op => seconds(op.seconds), op => op.seconds, true], ["share", op => [h("span", { class: "share", style: `width:${Math.max(2, Math.round(60 * op.seconds / total))}px`, "aria-hidden": "true" }), " " + percent(op.seconds / total)], op => op.seconds],
    ["GFLOP/s", op => short(op.flops / op.seconds / 1e9), op => op.flops / op.seconds, true], ["GB/s", op => short(op.bytes / op.seconds / 1e9), op => op.bytes / op.seconds, true],
    ["of the roofline", op => percent(Math.min(1, Math.max(op.flops / profile.peak_flops_per_s, op.bytes / profile.peak_bytes_per_s) / op.seconds)), op => Math.max(op.flops / profile.peak_flops_per_s, op.bytes / profile.peak_bytes_per_s) / op.seconds, true],
  ];
  const parts = [
    h("div", { class: "stats" }, stat(seconds(profile.step_s), `per step, median of ${profile.steps}`), stat(seconds(total), "in ops, timed one by one"), stat(short(profile.peak_flops_per_s / 1e9) + " GFLOP/s", "roofline, compute"), stat(short(profile.peak_bytes_per_s / 1e9) + " GB/s", "roofline, memory")),
    h("h3", {}, "By op"), table([...kinds.values()].sort((a, b) => b.seconds - a.seconds), [["op", kind => kind.op], ["calls", kind => count(kind.calls), kind => kind.calls, true], ...columns], { caption: "Time by op" }),
    h("h3", {}, "The slowest nodes"), table([...profile.ops].sort((a, b) => b.seconds - a.seconds).slice(0, 200), [["node", op => `${op.op} of ${op.scope || "–"}`], ...columns], { caption: "Time by node", wrap: 0 }),
  ];
  // Times by node are a table; where they lie in a step is a chart.
  if (profile.spans && profile.spans.length) {
    const origin = profile.spans[0][1], at = time => time - origin;
    const planned = profile.spans.map(([op, start]) => [at(start), profile.ops[op].planned_bytes]).concat([[at(profile.spans[profile.spans.length - 1][2]), profile.ops[profile.spans[profile.spans.length - 1][0]].planned_bytes]]);
    parts.push(h("h3", {}, "The last steps on one time axis"), stepTracks(profile));
    parts.push(lineChart({ id: "profile-planned", title: "Planned memory", unit: "of weights, optimizer state and live tensors in the last step", xName: "time in the step", xFormat: seconds, steps: true, ratio: 0.3, wide: true, base2: true, format: bytes, series: [{ name: "planned", points: planned, colour: colour(0) }] }));
  }
  if (profile.memory.length > 1) {
    const of = key => profile.memory.filter(sample => sample[key] != null).map(sample => [sample.time_s, sample[key]]);
    const series = [{ name: "resident, measured", points: of("resident_bytes"), colour: colour(0) }, { name: "device in use, measured", points: of("device_bytes"), colour: colour(1) }];
    const limits = [{ name: "host, planned peak", y: profile.planned_bytes }, { name: "device, planned peak", y: profile.planned_device_bytes }].filter(limit => limit.y);
    parts.push(lineChart({ id: "profile-memory", title: "Measured memory", unit: "after every step, against the planned peak", xName: "seconds", xFormat: short, ratio: 0.3, wide: true, base2: true, format: bytes, series, limits }));
  }
  parts[2].chartData = { ops: profile.ops.length };
  return parts;
}
