// Line charts as SVG, with round ticks and a cursor that the pointer and the arrow keys move.
function roundTicks(max, target, base2) {
  if (!(max > 0)) return [0];
  const rough = max / target;
  let step;
  if (base2) {
    const power = Math.pow(1024, Math.floor(Math.log(Math.max(rough, 1)) / Math.log(1024)));
    step = power * ([1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find(s => s * power >= rough) || 1024);
  } else {
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    step = power * [1, 2, 2.5, 5, 10].find(s => s * power >= rough * 0.999999);
  }
  const ticks = [];
  for (let i = 0; i * step <= max * 1.0000001; i++) ticks.push(i * step);
  return ticks;
}

// Series: { name, points: [[x, y], …], colour, dash }. Limits: { name, y } are drawn as horizontal lines.
function lineChart({ title, unit, series, limits = [], xName = "epoch", xFormat = short, format = short, base2 = false, ratio = 0.52, wide = false, id }) {
  series = series.filter(s => s.points.length > 0);
  if (series.length === 0) return null;
  // As wide as it is shown, so that text has its size on a phone too.
  const W = Math.min(wide ? 1090 : 520, Math.max(280, document.getElementById("content").clientWidth - (innerWidth > 760 ? 60 : 32))), H = Math.round(W < 480 ? W * Math.max(ratio, 0.6) : W * ratio), L = 58, R = 12, T = 10, B = 26;
  const xs = series.flatMap(s => s.points.map(p => p[0])), ys = series.flatMap(s => s.points.map(p => p[1])).concat(limits.map(l => l.y)).filter(isFinite);
  const x0 = Math.min(...xs), x1 = Math.max(...xs), low = Math.min(0, ...ys), top = Math.max(...ys, 1e-30);
  const yTicks = roundTicks(top * 1.02, 4, base2), y1 = Math.max(top * 1.04, yTicks[yTicks.length - 1]);
  const X = x => L + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (W - L - R);
  const Y = y => T + (1 - (y - low) / (y1 - low)) * (H - T - B);
  const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, "aria-hidden": "true" });
  for (const tick of yTicks) {
    chart.append(svg("path", { class: "axis", d: `M${L} ${Y(tick)}H${W - R}` }), svg("text", { x: L - 8, y: Y(tick) + 4, "text-anchor": "end" }, format(tick)));
  }
  const span = x1 - x0, whole = Number.isInteger(x0) && Number.isInteger(x1) && span >= 1;
  const inBytes = xFormat === bytes;
  const ticks = inBytes ? roundTicks(x1, Math.min(5, W / 100), true) : span > 0 ? roundTicks(x1, 6 * x1 / span).filter(t => !whole || Number.isInteger(t)) : [x0];
  const xTicks = ticks.filter(t => t >= x0);
  if (!inBytes && xTicks[0] > x0 + span / 12) xTicks.unshift(x0);
  if (inBytes && xTicks.length < 3) xTicks.splice(0, 2, x0, x1);
  for (const tick of xTicks) chart.append(svg("text", { x: X(tick), y: H - 7, "text-anchor": X(tick) > W - 40 ? "end" : "middle" }, xFormat(tick)));
  for (const limit of limits) chart.append(svg("path", { class: "line", d: `M${L} ${Y(limit.y)}H${W - R}`, style: `stroke:var(--bad)`, "stroke-dasharray": "5 4", "stroke-width": 1.4 }));
  for (const s of series) {
    const d = s.points.map((p, i) => (i ? "L" : "M") + X(p[0]).toFixed(1) + " " + Y(p[1]).toFixed(1)).join("");
    chart.append(svg("path", { class: "line", d, style: `stroke:${s.colour}`, "stroke-dasharray": s.dash ? "6 4" : "none" }));
    for (const p of s.points.length < 2 || inBytes ? s.points : []) chart.append(svg("circle", { cx: X(p[0]), cy: Y(p[1]), r: 3.5, style: `fill:${s.colour}` }));
  }
  const cursor = svg("path", { class: "cursor", d: "", visibility: "hidden" });
  chart.append(cursor);
  const places = [...new Set(xs)].sort((a, b) => a - b);
  let at = places.length - 1;
  const frame = h("div", { tabindex: 0, role: "slider", "aria-label": title, "aria-valuemin": x0, "aria-valuemax": x1, "aria-valuenow": x1 }, chart);
  const point = (index, show) => {
    at = Math.max(0, Math.min(places.length - 1, index));
    const x = places[at];
    const lines = series.map(s => { const p = s.points.find(p => p[0] === x); return p ? `${s.name}: ${format(p[1])}` : null; }).filter(Boolean);
    const text = [`${xName} ${xFormat(x)}`, ...lines].join("\n");
    frame.setAttribute("aria-valuenow", x);
    frame.setAttribute("aria-valuetext", text.replaceAll("\n", ", "));
    cursor.setAttribute("d", `M${X(x)} ${T}V${H - B}`);
    cursor.setAttribute("visibility", "visible");
    if (show) showTip(text, show[0], show[1]);
  };
  frame.addEventListener("pointermove", event => {
    const box = chart.getBoundingClientRect(), x = x0 + ((event.clientX - box.left) / box.width * W - L) / (W - L - R) * (x1 - x0);
    let best = 0;
    for (let i = 1; i < places.length; i++) if (Math.abs(places[i] - x) < Math.abs(places[best] - x)) best = i;
    point(best, [event.clientX, event.clientY]);
  });
  const leave = () => { hideTip(); cursor.setAttribute("visibility", "hidden"); };
  frame.addEventListener("pointerleave", leave);
  frame.addEventListener("blur", leave);
  frame.addEventListener("keydown", event => {
    const move = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1 }[event.key];
    if (move == null) return;
    event.preventDefault();
    const box = chart.getBoundingClientRect();
    point(move, [box.left + X(places[Math.max(0, Math.min(places.length - 1, move))]) / W * box.width, box.top + 20]);
  });
  frame.setAttribute("aria-valuetext", series.map(s => `${s.name}: ${format(s.points[s.points.length - 1][1])}`).join(", "));
  const figure = h("figure", { class: "chart", id }, h("figcaption", {}, title, unit ? h("span", {}, " " + unit) : null), frame,
    series.length + limits.length > 1 ? legend(series.map(s => [s.name, "", s.colour, s.dash]).concat(limits.map(l => [l.name, format(l.y), "var(--bad)", true]))) : null);
  figure.chartData = { title, series: series.map(s => ({ name: s.name, points: s.points })), limits };
  return figure;
}

// A canvas that keeps the resolution of the screen, drawn again when its size or the theme changes.
function plot(height, draw, attributes) {
  const canvas = h("canvas", { class: "plot", style: `height:${height}px`, ...attributes });
  const paint = () => {
    const width = canvas.clientWidth;
    if (width === 0) return;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    draw(context, width, height);
  };
  canvas.paint = paint;
  new ResizeObserver(paint).observe(canvas);
  onTheme(paint);
  return canvas;
}
