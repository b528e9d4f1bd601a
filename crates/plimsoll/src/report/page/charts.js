// Line charts as SVG, with round ticks and a cursor that the pointer and the arrow keys move.

// Round numbers from `low` to `high`, about `target` of them; of bytes, multiples of powers of two.
function roundTicks(low, high, target, base2) {
  if (!(high > low)) return [low];
  const rough = (high - low) / target;
  const base = base2 ? 1024 : 10, factors = base2 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [1, 2, 2.5, 5, 10];
  const power = Math.pow(base, Math.floor(Math.log(base2 ? Math.max(rough, 1) : rough) / Math.log(base)));
  const step = power * factors.find(factor => factor * power >= rough * 0.999999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-7); i * step <= high + (high - low) * 1e-7; i++) ticks.push(i * step + 0);
  return ticks;
}
// Smallest and largest of many numbers.
function extent(numbers) {
  let low = Infinity, high = -Infinity;
  for (const number of numbers) if (isFinite(number)) { if (number < low) low = number; if (number > high) high = number; }
  return [low, high];
}

// Series: { name, points: [[x, y], …], colour, dash }; with `steps`, a value holds until the next point. Limits: { name, y } are drawn as
// horizontal lines.
function lineChart({ title, unit, series, limits = [], xName = "epoch", xFormat = short, format = short, base2 = false, steps = false, ratio = 0.52, wide = false, id }) {
  series = series.filter(s => s.points.length > 0);
  if (series.length === 0) return null;
  // As wide as it is shown, so that text has its size on a phone too.
  const W = Math.min(wide ? 1090 : 520, Math.max(280, document.getElementById("content").clientWidth - (innerWidth > 760 ? 60 : 32))), H = Math.round(W < 480 ? W * Math.max(ratio, 0.6) : W * ratio), L = 62, R = 12, T = 10, B = 40;
  const xs = series.flatMap(s => s.points.map(p => p[0])), [x0, x1] = extent(xs), [least, most] = extent(series.flatMap(s => s.points.map(p => p[1])).concat(limits.map(l => l.y)));
  const low = Math.min(0, least), top = most > low ? most : low + 1;
  const yTicks = roundTicks(low, top + (top - low) * 0.02, 4, base2), bottom = Math.min(low, yTicks[0]), y1 = Math.max(top + (top - low) * 0.04, yTicks[yTicks.length - 1]);
  const X = x => L + (x1 > x0 ? (x - x0) / (x1 - x0) : 0.5) * (W - L - R);
  const Y = y => T + (1 - (y - bottom) / (y1 - bottom)) * (H - T - B);
  const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, "aria-hidden": "true" });
  for (const tick of yTicks) {
    chart.append(svg("path", { class: "axis", d: `M${L} ${Y(tick)}H${W - R}` }), svg("text", { x: L - 8, y: Y(tick) + 4, "text-anchor": "end" }, format(tick)));
  }
  const inBytes = xFormat === bytes, whole = !inBytes && Number.isInteger(x0) && Number.isInteger(x1);
  let xTicks = roundTicks(x0, x1, Math.min(6, W / 110), inBytes).filter(tick => !whole || Number.isInteger(tick));
  if (xTicks.length < 2) xTicks = x1 > x0 ? [x0, x1] : [x0];
  for (const tick of xTicks) chart.append(svg("text", { x: X(tick), y: H - 22, "text-anchor": X(tick) > W - 40 ? "end" : "middle" }, xFormat(tick)));
  chart.append(svg("text", { x: L + (W - L - R) / 2, y: H - 4, "text-anchor": "middle" }, xName));
  for (const limit of limits) chart.append(svg("path", { class: "line", d: `M${L} ${Y(limit.y)}H${W - R}`, style: `stroke:var(--bad)`, "stroke-dasharray": "5 4", "stroke-width": 1.4 }));
  for (const s of series) {
    const d = s.points.map(([x, y], i) => i === 0 ? `M${X(x).toFixed(1)} ${Y(y).toFixed(1)}` : steps ? `H${X(x).toFixed(1)}V${Y(y).toFixed(1)}` : `L${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("");
    chart.append(svg("path", { class: "line", d, style: `stroke:${s.colour}`, "stroke-dasharray": s.dash ? "6 4" : "none" }));
    for (const p of s.points.length < 2 || (inBytes && steps) ? s.points : []) chart.append(svg("circle", { cx: X(p[0]), cy: Y(p[1]), r: 3.5, style: `fill:${s.colour}` }));
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
