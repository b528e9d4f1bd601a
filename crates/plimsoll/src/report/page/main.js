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
    : [plan.model, `batch ${count(plan.batch)}`, plan.device, report ? `${count(report.steps)} steps in ${seconds(report.seconds)}` : run.log && run.log.length ? `${count(run.log.length)} epochs so far` : "planned, not run"].join(" · ");
  document.getElementById("head").append(h("div", { class: "row" }, h("div", {}, h("h1", {}, title), h("p", {}, facts)), button));
}

function build() {
  head();
  const one = RUNS.length === 1, run = RUNS[0];
  // Two runs stand beside each other; each part is drawn for both.
  const both = part => one ? part(run, "a") : [h("div", { class: "grid two" }, RUNS.map((run, r) => { const children = part(run, "ab"[r]); return children.length ? h("div", { style: "min-width:0" }, h("h3", { style: "margin-top:0" }, `${NAMES_AB[r]} · ${run.name}`), children) : null; }))];
  const any = part => RUNS.some(run => part(run).length > 0);
  if (!one) section("compare", "Comparison", "What differs between the two.", compareSection(RUNS));
  section("refused", "The budget is too small", run.refusal && "What the run needs at least, and the changes that would make it fit, each planned to the byte.", refusalSection(run));
  if (!run.refusal) section("budget", "Memory budget", "What the plan holds at its peak, by owner, within the budget.", both(budgetSection));
  section("memory", "Memory of a step", "Live bytes over the ops of a program, by layer. Move along the chart, or use the arrow keys, to see which tensors are live.", RUNS.some(run => run.memory && run.memory.programs.length) ? both(memorySection) : []);
  section("strategy", "Strategy", "How the run is made to fit, and what that costs.", both(strategySection));
  section("curves", "Training", "Scores, speed and memory of every epoch.", curvesSection(RUNS));
  section("hot", "Hot spots", "What holds the memory at the peak.", RUNS.some(run => run.memory) ? both(hotSpots) : []);
  if (any(profileSection)) section("profile", "Profile", "Where the time of a step goes, measured op by op.", both(profileSection));
  section("pipeline", "Input pipeline", "Stages, what they hold and how long they take, and the rows that come out.", both(pipelineSection));
  if (any(modelSection)) section("model", "Model", "Layers with their parameters, and their part of a training step.", both(modelSection));
  const configs = RUNS.filter(run => run.config);
  if (configs.length) section("configuration", "Configuration", "What was run.", configs.map((run, r) => h("div", {}, one ? null : h("h3", {}, `${NAMES_AB[r]} · ${run.name}`), h("pre", { tabindex: 0, "aria-label": one ? "Configuration" : `Configuration of ${NAMES_AB[r]}` }, run.config.trim()))));
  document.getElementById("nav").append(...sections.map(({ id, title }) => h("a", { href: "#" + id }, title)));
  document.documentElement.dataset.ready = "true";
}
build();
