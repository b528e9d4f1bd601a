// The packing itself: time from left to right, addresses upwards, a rectangle for every buffer. Zoomed with the wheel, the buttons or the keys.
function arenaView(timeline, detail) {
  const L = 62, R = 10, T = 8, B = 22, HEIGHT = 360;
  const arena = Math.max(timeline.program.arena_bytes, 1), steps = Math.max(timeline.T, 1);
  let view = { t0: 0, t1: steps, a0: 0, a1: arena }, picked = -1, drag = null;
  const X = (t, width) => L + (t - view.t0) / (view.t1 - view.t0) * (width - L - R);
  const Y = (a, height) => height - B - (a - view.a0) / (view.a1 - view.a0) * (height - T - B);
  const canvas = plot(HEIGHT, (context, width, height) => {
    context.font = `11px ${css("--font")}`;
    context.fillStyle = css("--track");
    context.fillRect(L, T, width - L - R, height - T - B);
    context.save();
    context.beginPath();
    context.rect(L, T, width - L - R, height - T - B);
    context.clip();
    const colours = timeline.names.map((_, g) => css(`--c${g}`)), card = css("--card");
    for (let i = 0; i < timeline.N; i++) {
      if (timeline.last[i] + 1 < view.t0 || timeline.first[i] > view.t1 || timeline.offset[i] + timeline.size[i] < view.a0 || timeline.offset[i] > view.a1) continue;
      const x = X(timeline.first[i], width), y = Y(timeline.offset[i] + timeline.size[i], height);
      const w = Math.max(X(timeline.last[i] + 1, width) - x, 1), tall = Math.max(Y(timeline.offset[i], height) - y, 1);
      context.fillStyle = colours[timeline.group[i]];
      context.fillRect(x, y, w, tall);
      if (w > 4 && tall > 4) { context.strokeStyle = card; context.lineWidth = 1; context.strokeRect(x + .5, y + .5, w - 1, tall - 1); }
    }
    if (picked >= 0) {
      const x = X(timeline.first[picked], width), y = Y(timeline.offset[picked] + timeline.size[picked], height);
      context.strokeStyle = css("--ink");
      context.lineWidth = 2;
      context.strokeRect(x, y, Math.max(X(timeline.last[picked] + 1, width) - x, 2), Math.max(Y(timeline.offset[picked], height) - y, 2));
    }
    context.restore();
    context.fillStyle = css("--soft");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of roundTicks(view.a0, view.a1, 4, true)) context.fillText(bytes(tick), L - 8, Y(tick, height));
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    for (const tick of opTicks(view.t0, view.t1, width)) context.fillText(count(tick), X(tick, width), height - 6);
    context.textAlign = "right";
    context.fillText("op", width - R, height - 6);
  }, { tabindex: 0, role: "application", "aria-label": "Packing of the arena. Arrow keys move, plus and minus zoom, zero shows all, N and P pick the next and the previous buffer." });
  // A finger scrolls the page until the view is zoomed; two fingers zoom.
  const touch = () => { canvas.style.touchAction = view.t1 - view.t0 < steps || view.a1 - view.a0 < arena ? "none" : "pan-y"; };
  touch();
  const fingers = new Map();
  const clamp = next => {
    const t = Math.min(next.t1 - next.t0, steps), a = Math.min(next.a1 - next.a0, arena);
    const t0 = Math.max(0, Math.min(next.t0, steps - t)), a0 = Math.max(0, Math.min(next.a0, arena - a));
    view = { t0, t1: t0 + Math.max(t, 1), a0, a1: a0 + Math.max(a, 1) };
    touch();
    canvas.paint();
  };
  const zoom = (factor, ft = 0.5, fa = 0.5) => {
    const t = view.t0 + ft * (view.t1 - view.t0), a = view.a0 + fa * (view.a1 - view.a0);
    clamp({ t0: t - (t - view.t0) * factor, t1: t + (view.t1 - t) * factor, a0: a - (a - view.a0) * factor, a1: a + (view.a1 - a) * factor });
  };
  const pan = (dt, da) => { const t = view.t1 - view.t0, a = view.a1 - view.a0; clamp({ t0: view.t0 + dt * t, t1: view.t1 + dt * t, a0: view.a0 + da * a, a1: view.a1 + da * a }); };
  const place = event => {
    const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left - L) / (box.width - L - R), 1 - (event.clientY - box.top - T) / (HEIGHT - T - B)];
  };
  const find = event => {
    const [ft, fa] = place(event), t = view.t0 + ft * (view.t1 - view.t0), a = view.a0 + fa * (view.a1 - view.a0);
    if (ft < 0 || ft > 1 || fa < 0 || fa > 1) return -1;
    for (let i = 0; i < timeline.N; i++) if (timeline.first[i] <= t && t < timeline.last[i] + 1 && timeline.offset[i] <= a && a < timeline.offset[i] + timeline.size[i]) return i;
    return -1;
  };
  const pick = i => {
    picked = i;
    detail.replaceChildren(h("p", {}, i < 0 ? "Point at a buffer, or press N: its tensor, bytes, producer and last consumer are shown here." : bufferDetail(timeline, i)));
    canvas.paint();
  };
  canvas.addEventListener("wheel", event => { if (!event.ctrlKey && document.activeElement !== canvas) return; event.preventDefault(); const [ft, fa] = place(event); zoom(event.deltaY > 0 ? 1.2 : 1 / 1.2, ft, fa); }, { passive: false });
  const apart = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY); };
  canvas.addEventListener("pointerdown", event => {
    drag = [event.clientX, event.clientY, { ...view }];
    if (event.pointerType === "touch") fingers.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
  });
  const lift = event => { drag = null; fingers.delete(event.pointerId); };
  canvas.addEventListener("pointerup", lift);
  canvas.addEventListener("pointercancel", lift);
  canvas.addEventListener("pointermove", event => {
    if (fingers.size === 2 && fingers.has(event.pointerId)) {
      const before = apart();
      fingers.set(event.pointerId, event);
      zoom(before / Math.max(apart(), 1), ...place(event));
      return;
    }
    if (drag) {
      const box = canvas.getBoundingClientRect(), from = drag[2], t = from.t1 - from.t0, a = from.a1 - from.a0;
      const dt = -(event.clientX - drag[0]) / (box.width - L - R) * t, da = (event.clientY - drag[1]) / (HEIGHT - T - B) * a;
      clamp({ t0: from.t0 + dt, t1: from.t1 + dt, a0: from.a0 + da, a1: from.a1 + da });
      return;
    }
    const i = find(event);
    if (i !== picked) pick(i);
    if (i >= 0) showTip(bufferLines(timeline, i).join("\n"), event.clientX, event.clientY); else hideTip();
  });
  canvas.addEventListener("pointerleave", hideTip);
  const order = () => [...Array(timeline.N).keys()].sort((a, b) => timeline.first[a] - timeline.first[b] || timeline.offset[a] - timeline.offset[b]);
  let inOrder = null;
  canvas.addEventListener("keydown", event => {
    const moves = { ArrowLeft: [-.1, 0], ArrowRight: [.1, 0], ArrowUp: [0, .1], ArrowDown: [0, -.1] };
    if (moves[event.key]) pan(...moves[event.key]);
    else if (event.key === "+" || event.key === "=") zoom(1 / 1.4);
    else if (event.key === "-") zoom(1.4);
    else if (event.key === "0") clamp({ t0: 0, t1: steps, a0: 0, a1: arena });
    else if (event.key === "n" || event.key === "p") {
      inOrder = inOrder || order();
      const at = inOrder.indexOf(picked) + (event.key === "n" ? 1 : -1);
      pick(inOrder[(at + inOrder.length) % inOrder.length]);
    } else return;
    event.preventDefault();
  });
  pick(-1);
  const button = (text, label, act) => h("button", { type: "button", "aria-label": label, onclick: act }, text);
  canvas.chartData = { buffers: timeline.N, arena };
  return h("div", {}, h("div", { class: "tools" }, button("+", "Zoom in", () => zoom(1 / 1.6)), button("−", "Zoom out", () => zoom(1.6)), button("All", "Show all", () => clamp({ t0: 0, t1: steps, a0: 0, a1: arena })), h("span", { class: "soft hide-small" }, "Drag to move. Click it, then scroll to zoom, or use + and −.")), canvas);
}
