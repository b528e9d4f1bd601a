// The page from top to bottom.
function head() {
  const run = RUNS[0], plan = run.plan, report = run.report;
  const stored = (() => { try { return localStorage.getItem("plimsoll-theme"); } catch { return null; } })();
  if (stored) document.documentElement.dataset.theme = stored;
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = h("button", { type: "button", id: "theme", onclick: () => {
    const next = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("plimsoll-theme", next); } catch { /* A file that may not store anything keeps the choice until it is closed. */ }
    button.textContent = dark() ? "Light" : "Dark";
    redraw();
  } }, dark() ? "Light" : "Dark");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { button.textContent = dark() ? "Light" : "Dark"; redraw(); });
  const title = RUNS.length > 1 ? `${RUNS[0].name} and ${RUNS[1].name}` : run.name;
  const facts = run.refusal
    ? `${plan.model} · batch ${count(plan.batch)} · ${plan.device} · the budget was refused`
    : RUNS.length > 1 ? "Two runs side by side; A is the first."
    : [plan.model, `batch ${count(plan.batch)}`, plan.device, report ? `${count(report.steps)} steps in ${seconds(report.seconds)}` : run.log && run.log.length ? `${count(run.log.length)} epochs so far` : run.profile ? `${count(run.profile.steps)} steps profiled` : "planned, not run"].join(" · ");
  document.getElementById("head").append(h("div", { class: "row" }, h("div", {}, h("h1", {}, title), h("p", {}, facts)), button));
}

function build() {
  head();
  const one = RUNS.length === 1, run = RUNS[0];
  // Two runs stand beside each other; each part is drawn for both.
  const both = part => {
    if (one) return part(run, "a");
    const sides = RUNS.map((run, r) => part(run, "ab"[r]));
    if (sides.every(children => children.length === 0)) return [];
    return [h("div", { class: "grid two" }, sides.map((children, r) => h("div", { style: "min-width:0" }, h("h3", { style: "margin-top:0" }, `${NAMES_AB[r]} · ${RUNS[r].name}`), children.length ? children : h("p", { class: "soft" }, "Not recorded."))))];
  };
  if (!one) section("compare", "Comparison", "What differs between the two.", compareSection(RUNS));
  section("refused", "The budget is too small", run.refusal && "What the run needs at least, and the cheapest changes. Each was planned: its new peak is the smallest budget that works with it.", refusalSection(run));
  if (!run.refusal) section("budget", "Memory budget", "What the plan holds at its peak, by owner, within the budget.", both(budgetSection));
  section("memory", "Memory of a step", "Live bytes over the ops of a program, by layer. Point at the chart, or use the arrow keys, to see which tensors are live.", both(memorySection));
  section("strategy", "Strategy", "How the run is made to fit, and what that costs.", both(strategySection));
  section("curves", "Training", "Scores, speed and memory of every epoch.", curvesSection(RUNS));
  section("hot", "Hot spots", "What holds the memory at the peak.", both(hotSpots));
  section("profile", "Profile", "Where the time of a step goes, measured op by op.", both(profileSection));
  section("pipeline", "Input pipeline", "Stages, what they hold and how long they take, and the rows that come out.", both(pipelineSection));
  section("model", "Model", "Layers with their parameters, and their part of a training step.", both(modelSection));
  section("sparsity", "Sparsity", "Weights that were pruned, and how many of their numbers are zero.", both(sparsitySection));
  const configs = RUNS.filter(run => run.config);
  if (configs.length) section("configuration", "Configuration", "What was run.", configs.map((run, r) => h("div", {}, one ? null : h("h3", {}, `${NAMES_AB[r]} · ${run.name}`), h("pre", { tabindex: 0, "aria-label": one ? "Configuration" : `Configuration of ${NAMES_AB[r]}` }, run.config.trim()))));
  document.getElementById("nav").append(...sections.map(({ id, title }) => h("a", { href: "#" + id }, title)));
  document.documentElement.dataset.ready = "true";
}
build();
