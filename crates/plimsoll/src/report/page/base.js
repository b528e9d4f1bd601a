// Data, numbers as text, elements, colours.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;
const NAMES_AB = ["A", "B"];
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function bytes(n) {
  if (n == null) return "–";
  if (n === 0) return "0 B";
  let unit = 0, sign = n < 0 ? "−" : "";
  n = Math.abs(n);
  while (n >= 1024 && unit < 4) { n /= 1024; unit++; }
  return sign + (unit === 0 ? Math.round(n) : digits(n)) + "\u00a0" + UNITS[unit];
}
function digits(n) { return n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2); }
function seconds(s) {
  if (s == null || !isFinite(s)) return "–";
  if (s === 0) return "0 s";
  if (s < 1e-3) return digits(s * 1e6) + "\u00a0µs";
  if (s < 1) return digits(s * 1e3) + "\u00a0ms";
  if (s < 120) return digits(s) + "\u00a0s";
  if (s < 7200) return Math.round(s / 60) + "\u00a0min";
  return digits(s / 3600) + "\u00a0h";
}
function count(n) { return n == null ? "–" : Math.round(n).toLocaleString("en-US"); }
function short(n) {
  if (n == null || !isFinite(n)) return "–";
  const a = Math.abs(n);
  if (a >= 1e12) return digits(n / 1e12) + "T";
  if (a >= 1e9) return digits(n / 1e9) + "G";
  if (a >= 1e6) return digits(n / 1e6) + "M";
  if (a >= 1e4) return digits(n / 1e3) + "k";
  if (a >= 100) return n.toFixed(0);
  if (a === 0) return "0";
  if (a < 1e-3) return n.toExponential(1);
  return String(+n.toPrecision(3));
}
function percent(share) { return (100 * share).toFixed(share < 0.0995 ? 1 : 0) + "\u00a0%"; }

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value == null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") element.style.cssText = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child != null));
  return element;
}
function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const PALETTE = 12;
function colour(index) { return `var(--c${Math.min(index, PALETTE - 1)})`; }
let resolved = {};
function css(name) { return resolved[name] || (resolved[name] = getComputedStyle(document.documentElement).getPropertyValue(name).trim()); }
const redraws = [];
function onTheme(draw) { redraws.push(draw); }
function redraw() { resolved = {}; redraws.forEach(draw => draw()); }

const sections = [];
function section(id, title, about, ...children) {
  const body = children.flat().filter(child => child != null);
  if (body.length === 0) return;
  sections.push({ id, title });
  const heading = h("h2", { id: id + "-title" }, title);
  document.getElementById("content").append(h("section", { id, "aria-labelledby": id + "-title" }, heading, about && h("p", { class: "about" }, about), body));
}

const tip = document.getElementById("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(6, Math.min(x + 14, innerWidth - box.width - 6)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
}
function hideTip() { tip.hidden = true; }

// A table whose headers sort it. Columns: [title, cell of a row, value to sort by or null, numeric].
const captions = new Map(), ROWS_SHOWN = 500;
function table(rows, columns, options = {}) {
  // Two runs have the same tables; their names have to differ.
  const named = options.caption || "Table", before = captions.get(named) || 0;
  captions.set(named, before + 1);
  const caption = before ? `${named}, ${before + 1}` : named;
  const body = h("tbody", {});
  const fill = list => body.replaceChildren(...list.slice(0, ROWS_SHOWN).map(row => h("tr", {}, columns.map(([, cell, , numeric], i) =>
    h(i === 0 ? "th" : "td", { class: (numeric ? "n" : "") + (options.wrap === i ? " wrapany" : ""), scope: i === 0 ? "row" : null }, cell(row))))));
  const heads = columns.map(([title, , value, numeric]) => {
    if (!value || rows.length < 3) return h("th", { scope: "col", class: numeric ? "n" : "" }, title);
    const th = h("th", { scope: "col", class: numeric ? "n" : "" });
    th.append(h("button", { type: "button", onclick: () => {
      const down = th.getAttribute("aria-sort") !== "descending";
      heads.forEach(head => head.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = [...rows].sort((a, b) => { const x = value(a), y = value(b); return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); });
      fill(sorted);
    } }, title));
    return th;
  });
  fill(rows);
  const element = h("table", {}, h("caption", { class: "soft", style: "text-align:left;position:absolute;left:-9999px" }, caption), h("thead", {}, h("tr", {}, heads)), body);
  const tall = rows.length > 14;
  const region = h("div", { class: tall ? "scroll tall" : "scroll", tabindex: 0, role: "region", "aria-label": caption }, element);
  return rows.length <= ROWS_SHOWN ? region : h("div", {}, region, h("p", { class: "soft small" }, `The first ${count(ROWS_SHOWN)} of ${count(rows.length)} rows. Sort by a column to see others.`));
}
function legend(entries) {
  return h("ul", { class: "key" }, entries.map(([name, text, fill, dash]) => h("li", {}, h("span", { class: dash ? "swatch dash" : "swatch", style: (dash ? "border-color:" : "background:") + fill }), h("span", {}, h("b", {}, name), text ? " " + text : ""))));
}
function stat(value, label) { return h("div", { class: "stat" }, h("b", {}, value), h("span", {}, label)); }
