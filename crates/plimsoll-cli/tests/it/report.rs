//! The report: its data is that of the files of the run, and a browser shows it without errors.

use crate::Sandbox;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The data that a page embeds.
fn data(page: &Path) -> Value {
    let html = std::fs::read_to_string(page).unwrap();
    let (_, rest) = html.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

/// The largest sum of live buffers over the steps of a program of the memory map.
fn peak(program: &Value) -> u64 {
    let [first, last, size] = ["first", "last", "size"].map(|key| numbers(&program[key]));
    let live = |step: u64| (0..size.len()).filter(|i| first[*i] <= step && step <= last[*i]).map(|i| size[i]).sum::<u64>();
    (0..program["op"].as_array().unwrap().len() as u64).map(live).max().unwrap_or(0)
}

fn trained(name: &str) -> Sandbox {
    let sandbox = Sandbox::new(name);
    sandbox.succeed(&["train", "--epochs", "3", "--host-memory", "32MiB", "--out", "run", "--quiet"]);
    sandbox
}

#[test]
fn a_report_has_the_numbers_of_its_run() {
    let sandbox = trained("report-data");
    let run = &data(&sandbox.path("run/report.html"))["runs"][0];
    let plan = read(&sandbox.path("run/plan.json"));
    assert_eq!(run["plan"], plan);
    assert_eq!(run["report"], read(&sandbox.path("run/report.json")));
    assert_eq!(run["log"], json!(lines(&sandbox.path("run/log.jsonl"))));
    assert_eq!(run["config"], json!(std::fs::read_to_string(sandbox.path("run/config.toml")).unwrap()));

    let memory = &run["memory"];
    assert_eq!((&memory["arena_bytes"], &memory["resident_bytes"]), (&plan["arena_bytes"], &plan["resident_bytes"]));
    let programs = memory["programs"].as_array().unwrap();
    assert_eq!(programs.iter().map(peak).max(), plan["lower_bound_bytes"].as_u64());
    let flops: u64 = numbers(&programs[0]["flops"]).iter().sum();
    let stated = plan["flops_per_step"].as_u64().unwrap();
    assert!(flops.abs_diff(stated) < stated / 1000, "{flops} of {stated}: only layouts change after the plan counts");
    let weights: u64 =
        memory["states"].as_array().unwrap().iter().filter(|state| state[1] == "weights").map(|state| state[3].as_u64().unwrap()).sum();
    assert!(weights <= plan["by_owner"]["weights"].as_u64().unwrap());

    let samples = &run["samples"];
    assert_eq!((&samples["batch_rows"], &samples["columns"][0]["image"]), (&json!(32), &json!([8, 8, 1])));
    let classes = &run["classes"];
    assert_eq!(classes["rows"], 359, "all rows of the validation data");
    assert_eq!(numbers(&classes["matrix"]).iter().sum::<u64>(), 359);
    let right = numbers(&classes["right"]).iter().sum::<u64>() as f64 / 359.0;
    assert!((right - run["log"][2]["val_accuracy"].as_f64().unwrap()).abs() < 1e-6, "the accuracy of the last epoch");
}

#[test]
fn a_report_needs_no_other_file_and_leaves_out_rows_on_request() {
    let sandbox = trained("report-files");
    sandbox.succeed(&["report", "run", "--out", "page.html", "--no-samples"]);
    let html = std::fs::read_to_string(sandbox.path("page.html")).unwrap();
    let run = &data(&sandbox.path("page.html"))["runs"][0];
    assert!(run.get("samples").is_none() && run.get("worst").is_none() && run.get("classes").is_some());
    for outside in ["<link rel=\"stylesheet\"", "<script src", "@import", "url(", "<img src=\"http"] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("default-src 'none'"), "a browser refuses whatever is not in the file");
    sandbox.succeed(&["train", "--epochs", "1", "--set", "log.samples=false", "--out", "without", "--quiet"]);
    assert!(data(&sandbox.path("without/report.html"))["runs"][0].get("samples").is_none());
    assert!(!sandbox.path("without/details/samples.json").exists());
    let (_, error) = sandbox.fail(&["report", "nothing"]);
    insta::assert_snapshot!(error, @"error: nothing does not exist; name the folder of a run, or a plan that `plimsoll plan --out` wrote");
}

/// Validation data is often sorted by class: the confusion matrix of many rows counts some of every part.
#[test]
fn a_confusion_matrix_of_many_rows_has_every_class() {
    let sandbox = Sandbox::new("report-classes");
    let rows = |count: usize| (0..count).map(|i| format!("{}.5,{}.25,{}\n", i % 7, i % 5, 4 * i / count)).collect::<String>();
    sandbox.write("train.csv", format!("a,b,class\n{}", rows(64)));
    sandbox.write("validation.csv", format!("a,b,class\n{}", rows(6001)));
    let config = "[data]\nsource = \"csv\"\npath = \"train.csv\"\ntarget = \"class\"\n[data.validation]\npath = \"validation.csv\"\n\
                  [model]\nlayers = [{ type = \"dense\", units = 4 }]\n[train]\nbatch = 16\nepochs = 1\n";
    sandbox.write("run.toml", config);
    sandbox.succeed(&["train", "run.toml", "--out", "run", "--quiet"]);
    let classes = read(&sandbox.path("run/details/classes.json"));
    assert_eq!((&classes["every"], &classes["rows"]), (&json!(4), &json!(1501)));
    assert!(numbers(&classes["labels"]).iter().all(|rows| rows.abs_diff(375) <= 1), "{classes}");
}

/// Text of the data cannot end the script it stands in.
#[test]
fn names_are_data_and_never_markup() {
    let sandbox = Sandbox::new("report-markup");
    let name = "</script><script>alert(1)</script>";
    sandbox.succeed(&["plan", "--set", &format!("model.name={name}"), "--out", "plan.json", "--quiet"]);
    sandbox.succeed(&["report", "plan.json", "--quiet"]);
    let html = std::fs::read_to_string(sandbox.path("plan.html")).unwrap();
    assert!(!html.contains("<script>alert"));
    assert_eq!(data(&sandbox.path("plan.html"))["runs"][0]["plan"]["model"], name);
}

/// A plan file has the same buffers as the map that a run writes.
#[test]
fn plans_have_reports_too_and_two_stand_side_by_side() {
    let sandbox = trained("report-plans");
    sandbox.succeed(&["plan", "--epochs", "3", "--host-memory", "32MiB", "--out", "plan.json", "--quiet"]);
    sandbox.succeed(&["report", "run", "plan.json", "--out", "both.html"]);
    let both = data(&sandbox.path("both.html"));
    let [run, plan] = [0, 1].map(|i| &both["runs"][i]);
    assert_eq!(run["memory"], plan["memory"], "buffers with types, ops with FLOPs, and layers");
    assert_eq!(plan["memory"]["layers"][0], json!(["conv2d", "conv2d", "[B, 8, 8, 16]", 160, 0]));
    assert_eq!((&run["name"], &plan["name"]), (&json!("run"), &json!("plan")));
    sandbox.succeed(&["plan", "--epochs", "3", "--host-memory", "32MiB", "--report", "planned.html", "--quiet"]);
    assert_eq!(data(&sandbox.path("planned.html"))["runs"][0]["memory"], run["memory"], "`plan --report` shows the same");
    sandbox.succeed(&["report", "run", "--curve", "--out", "curve.html", "--quiet"]);
    let curve = &data(&sandbox.path("curve.html"))["runs"][0]["curve"];
    assert!(curve["points"].as_array().unwrap().len() > 1);
}

/// A plan file whose graphs cannot be built still has its buffers, and the page says what is not known.
#[test]
fn a_plan_without_its_configuration_says_what_is_not_known() {
    let sandbox = Sandbox::new("report-unknown");
    sandbox.succeed(&["plan", "--host-memory", "32MiB", "--out", "plan.json", "--quiet"]);
    let mut file = read(&sandbox.path("plan.json"));
    file["configuration"] = json!("[data]\nsource = \"csv\"\npath = \"moved.csv\"\n[model]\nzoo = \"mlp\"\n");
    sandbox.write("moved.json", file.to_string());
    sandbox.succeed(&["report", "moved.json", "--quiet"]);
    let run = &data(&sandbox.path("moved.html"))["runs"][0];
    assert!(run["unknown"].as_str().unwrap().contains("moved.csv"), "{}", run["unknown"]);
    assert_eq!(run["memory"]["arena_bytes"], run["plan"]["arena_bytes"]);
    assert_eq!(peak(&run["memory"]["programs"][0]), run["plan"]["lower_bound_bytes"].as_u64().unwrap());
    assert_eq!(run["memory"]["layers"], json!([]));
}

/// Every change that a refusal names leads to exactly the peak it states.
#[test]
fn a_refused_budget_names_changes_with_exact_peaks() {
    let sandbox = Sandbox::new("report-refused");
    let none = sandbox.run(&["plan", "--allow", "none", "--batch", "256", "--host-memory", "1MiB", "--json"]);
    let minimum = serde_json::from_slice::<Value>(&none.stdout).unwrap()["min_bytes"].as_u64().unwrap();
    let budget = (minimum - (1 << 20)).to_string();
    let refused = ["plan", "--allow", "none", "--batch", "256", "--host-memory", &budget];
    let (status, error) = sandbox.fail(&[&refused[..], &["--report", "refused.html"]].concat());
    assert_eq!(status, 3, "{error}");
    assert!(error.contains("report written to refused.html"), "{error}");
    let refusal = &data(&sandbox.path("refused.html"))["runs"][0]["refusal"];
    let changes = refusal["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 3);
    for change in changes {
        let flags: Vec<&str> = change["flag"].as_str().unwrap().split(' ').collect();
        let peak = change["peak_bytes"].as_u64().unwrap();
        let with = |bytes: u64| {
            let mut arguments = vec!["plan".to_string(), "--quiet".to_string()];
            for pair in refused[1..].chunks(2).filter(|pair| pair[0] != flags[0] && pair[0] != "--host-memory") {
                arguments.extend(pair.iter().map(|word| word.to_string()));
            }
            if flags[0] != "--host-memory" {
                arguments.extend(flags.iter().map(|word| word.to_string()));
            }
            arguments.extend(["--host-memory".to_string(), bytes.to_string()]);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            sandbox.run(&arguments).status.success()
        };
        assert!(with(peak), "{change}");
        assert!(!with(peak - 1), "one byte less is refused: {change}");
    }
}

/// Debian's browser without a window, or any other Chromium.
fn browser() -> Option<&'static str> {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    names.into_iter().find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
}

/// The source of axe-core, which checks accessibility: of `AXE_CORE`, or in `NODE_PATH`.
fn axe() -> Option<String> {
    let named = std::env::var_os("AXE_CORE").map(PathBuf::from);
    let installed = std::env::var_os("NODE_PATH").map(|folder| Path::new(&folder).join("axe-core/axe.min.js"));
    let found = named.or(installed).and_then(|path| std::fs::read_to_string(path).ok());
    if found.is_none() {
        println!("no axe-core here: accessibility is not checked (npm install axe-core; NODE_PATH=node_modules)");
    }
    found.map(|source| source.replace("</script", "<\\/script"))
}

/// Collects what a browser makes of a page: errors, its width, the data of every chart, what axe-core finds, and what
/// pointer and keys do.
const PROBE: &str = r##"
window.problems = [];
addEventListener("error", event => problems.push(event.message));
addEventListener("securitypolicyviolation", event => problems.push(event.violatedDirective));
for (const kind of ["error", "warn"]) { const before = console[kind]; console[kind] = (...words) => { problems.push(words.join(" ")); before(...words); }; }
addEventListener("load", () => setTimeout(async () => {
  const plain = (key, value) => ArrayBuffer.isView(value) ? Array.from(value) : value;
  const charts = [...document.querySelectorAll("*")].filter(element => element.chartData).map(element => ({ id: element.id, tag: element.tagName, ...element.chartData }));
  const { violations } = window.axe ? await axe.run() : { violations: [] };
  const result = { problems, width: innerWidth, scroll: document.documentElement.scrollWidth, sections: [...document.querySelectorAll("section")].map(section => section.id), charts, ready: document.documentElement.dataset.ready,
    violations: violations.map(violation => `${violation.id}: ${violation.help} (${violation.nodes[0].target})`) };
  const [timeline, arena] = document.querySelectorAll("#memory canvas"), tip = document.getElementById("tip");
  if (timeline) {
    const box = timeline.getBoundingClientRect(), press = (element, key) => element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    timeline.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 0.7 * box.width, clientY: box.top + 0.85 * box.height, bubbles: true }));
    result.hover = tip.textContent;
    const before = +timeline.getAttribute("aria-valuenow");
    press(timeline, "ArrowLeft");
    result.moved = before - +timeline.getAttribute("aria-valuenow");
    press(arena, "n");
    result.picked = document.querySelectorAll("#memory .detail")[1].textContent;
    result.focusable = [...document.querySelectorAll("#memory canvas, #curves [role=slider]")].every(element => element.tabIndex === 0);
  }
  parent.postMessage(JSON.stringify(result, plain), "*");
}, 300));
"##;

/// A page that shows the report in a frame, so that any width is possible, and keeps what it tells.
const FRAME: &str = r#"<!doctype html><iframe src="probe.html" width="WIDTH" height="900" style="border:0"></iframe><script>
addEventListener("message", event => { const pre = document.createElement("pre"); pre.id = "probe"; pre.textContent = event.data; document.body.append(pre); });
</script>"#;

/// What the browser sees in a theme and at a width, in pixels.
fn probe(browser: &str, sandbox: &Sandbox, page: &str, theme: &str, width: u32, axe: Option<&str>) -> Value {
    let html = std::fs::read_to_string(sandbox.path(page)).unwrap();
    let html = html.replacen("<html ", &format!("<html data-theme=\"{theme}\" "), 1);
    let scripts = format!("<script>{PROBE}</script><script>{}</script><style>", axe.unwrap_or_default());
    sandbox.write("probe.html", html.replacen("<style>", &scripts, 1));
    sandbox.write("frame.html", FRAME.replace("WIDTH", &width.to_string()));
    let address = format!("file://{}", sandbox.path("frame.html").display());
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000", "--window-size=1600,1000"])
        .args([&format!("--user-data-dir={}", sandbox.path("browser").display()), "--dump-dom", &address])
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&output.stdout);
    let (_, rest) = dom
        .split_once("<pre id=\"probe\">")
        .unwrap_or_else(|| panic!("the page did not load: {}", String::from_utf8_lossy(&output.stderr)));
    let text = rest.split_once("</pre>").unwrap().0.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let seen: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&seen["problems"], &seen["ready"]), (&json!([]), &json!("true")), "{page}, {theme}, {width} px");
    assert_eq!(seen["violations"], json!([]), "{page}, {theme}, {width} px");
    assert_eq!(seen["width"], width);
    assert!(seen["scroll"].as_u64() <= Some(u64::from(width)), "{page} overflows {width} px: {}", seen["scroll"]);
    seen
}

/// The chart whose data has a key.
fn chart<'v>(seen: &'v Value, key: &str) -> &'v Value {
    seen["charts"].as_array().unwrap().iter().find(|chart| chart.get(key).is_some()).unwrap_or_else(|| panic!("no chart with {key}"))
}

/// The points of a series of a chart.
fn points(seen: &Value, id: &str, series: &str) -> Vec<(f64, f64)> {
    let chart = seen["charts"].as_array().unwrap().iter().find(|chart| chart["id"] == id).unwrap_or_else(|| panic!("no chart {id}"));
    let series = chart["series"].as_array().unwrap().iter().find(|known| known["name"] == series).unwrap();
    series["points"].as_array().unwrap().iter().map(|point| (point[0].as_f64().unwrap(), point[1].as_f64().unwrap())).collect()
}

#[test]
fn a_browser_draws_what_the_files_say() {
    let Some(browser) = browser() else {
        println!("no Chromium here: pages are not rendered (Debian: apt-get install chromium-headless-shell)");
        return;
    };
    let (axe, sandbox) = (axe(), trained("report-browser"));
    let (plan, log) = (read(&sandbox.path("run/plan.json")), lines(&sandbox.path("run/log.jsonl")));
    let details = |name: &str| sandbox.path(&format!("run/details/{name}"));
    for (theme, width) in [("light", 390), ("dark", 390), ("light", 1440), ("dark", 1440)] {
        let seen = probe(browser, &sandbox, "run/report.html", theme, width, axe.as_deref());
        let sections = ["budget", "memory", "strategy", "curves", "hot", "pipeline", "model", "configuration"];
        assert_eq!(seen["sections"], json!(sections));
        let gauge = chart(&seen, "owners");
        assert_eq!((&gauge["owners"], &gauge["budget"]), (&plan["by_owner"], &plan["host_budget_bytes"]), "the gauge");
        let timeline = chart(&seen, "live");
        assert_eq!(timeline["peak"], plan["lower_bound_bytes"], "the timeline");
        let program = &read(&details("memory.json"))["programs"][0];
        let [first, last, size] = ["first", "last", "size"].map(|key| numbers(&program[key]));
        for (step, drawn) in numbers(&timeline["live"]).into_iter().enumerate().take(program["op"].as_array().unwrap().len()) {
            let step = step as u64;
            let live: u64 = (0..size.len()).filter(|i| first[*i] <= step && step <= last[*i]).map(|i| size[i]).sum();
            assert_eq!(drawn, live, "live bytes at op {step}");
        }
        assert_eq!(chart(&seen, "buffers")["buffers"], size.len(), "the arena has every buffer");
        assert_eq!(chart(&seen, "buffers")["arena"], plan["arena_bytes"], "the arena");
        let hot = seen["charts"].as_array().unwrap().iter().find(|chart| chart["layers"].is_object()).unwrap();
        assert_eq!(hot["peak"], plan["lower_bound_bytes"], "hot spots");
        for (id, series, key) in [
            ("curve-loss", "training", "loss"),
            ("curve-loss", "validation", "val_loss"),
            ("curve-accuracy", "training", "accuracy"),
            ("curve-accuracy", "validation", "val_accuracy"),
            ("curve-rate", "learning rate", "learning_rate"),
            ("curve-throughput", "throughput", "examples_per_s"),
            ("curve-memory", "resident", "resident_bytes"),
        ] {
            let logged: Vec<(f64, f64)> = log.iter().map(|line| (line["epoch"].as_f64().unwrap(), line[key].as_f64().unwrap())).collect();
            assert_eq!(points(&seen, id, series), logged, "{id} {series}");
        }
        let batch = plan["batch"].as_f64().unwrap();
        let step_times: Vec<f64> = points(&seen, "curve-step", "step time").into_iter().map(|(_, seconds)| seconds).collect();
        assert_eq!(step_times, log.iter().map(|line| batch / line["examples_per_s"].as_f64().unwrap()).collect::<Vec<_>>());
        let limit = &seen["charts"].as_array().unwrap().iter().find(|chart| chart["id"] == "curve-memory").unwrap()["limits"][0];
        assert_eq!(limit["y"], plan["host_budget_bytes"], "resident memory against the budget");
        let classes = read(&details("classes.json"));
        assert_eq!(chart(&seen, "confusion")["confusion"], classes["matrix"], "the confusion matrix");
        assert_eq!(chart(&seen, "stages")["stages"], read(&sandbox.path("run/report.json"))["pipeline"]["stages"], "the pipeline");
        let layers = read(&details("memory.json"))["layers"].as_array().unwrap().iter().map(|layer| layer[0].clone()).collect::<Vec<_>>();
        assert_eq!(
            seen["charts"].as_array().unwrap().iter().find(|chart| chart["layers"].is_array()).unwrap()["layers"],
            json!(layers),
            "the model"
        );

        let hover = seen["hover"].as_str().unwrap();
        assert!(hover.contains("iB") && hover.contains("produced by ") && hover.contains("last read by "), "{hover}");
        assert_eq!((&seen["moved"], &seen["focusable"]), (&json!(1), &json!(true)), "arrow keys move, tab reaches every chart");
        assert!(seen["picked"].as_str().unwrap().contains("produced by "), "N picks a buffer: {}", seen["picked"]);
    }
}

/// Every other kind of page: a plan, two runs, a refused budget, a profile, a curve.
#[test]
fn a_browser_opens_every_kind_of_page() {
    let Some(browser) = browser() else {
        println!("no Chromium here: pages are not rendered (Debian: apt-get install chromium-headless-shell)");
        return;
    };
    let (axe, sandbox) = (axe(), trained("report-pages"));
    sandbox.succeed(&["plan", "--epochs", "3", "--host-memory", "32MiB", "--out", "plan.json", "--quiet"]);
    sandbox.succeed(&["report", "plan.json", "--quiet"]);
    sandbox.succeed(&["report", "run", "plan.json", "--out", "both.html", "--quiet"]);
    sandbox.succeed(&["report", "run", "--curve", "--out", "curve.html", "--quiet"]);
    sandbox.fail(&["plan", "--allow", "none", "--batch", "256", "--host-memory", "6MiB", "--report", "refused.html"]);
    let profile = sandbox.json(&["profile", "--steps", "4", "--host-memory", "32MiB", "--report", "profile.html", "--json"]);
    let flags = ["--device", "cuda:0", "--device-profile", "h200", "--device-memory", "4GiB", "--host-memory", "16GiB"];
    sandbox.succeed(&[&["plan", "--zoo", "resnet18", "--batch", "8", "--report", "gpu.html", "--quiet"][..], &flags].concat());
    let see = |page: &str| {
        probe(browser, &sandbox, page, "dark", 390, axe.as_deref());
        probe(browser, &sandbox, page, "light", 1440, axe.as_deref())
    };
    assert_eq!(see("plan.html")["sections"], json!(["budget", "memory", "strategy", "hot", "pipeline", "model", "configuration"]));
    assert_eq!(see("both.html")["sections"][0], "compare");
    assert_eq!(see("refused.html")["sections"][0], "refused");
    assert_eq!(see("gpu.html")["sections"][0], "budget");
    let curve = read_points(&data(&sandbox.path("curve.html"))["runs"][0]["curve"]["points"], "budget_bytes", "predicted_step_s");
    assert_eq!(points(&see("curve.html"), "curve", "step time"), curve.into_iter().rev().collect::<Vec<_>>());
    let seen = see("profile.html");
    assert_eq!(chart(&seen, "ops")["ops"], profile["ops"].as_array().unwrap().len());
    assert_eq!(points(&seen, "profile-memory", "resident, measured"), read_points(&profile["memory"], "time_s", "resident_bytes"));
    let spans = profile["spans"].as_array().unwrap();
    let planned: Vec<f64> =
        spans.iter().map(|span| profile["ops"][span[0].as_u64().unwrap() as usize]["planned_bytes"].as_f64().unwrap()).collect();
    let drawn: Vec<f64> = points(&seen, "profile-planned", "planned").into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(drawn[..planned.len()], planned);
    assert_eq!(chart(&seen, "tracks")["tracks"]["ops"], spans.len(), "every op of the last step");
}

/// Two numbers of every entry of a list.
fn read_points(list: &Value, x: &str, y: &str) -> Vec<(f64, f64)> {
    list.as_array().unwrap().iter().map(|entry| (entry[x].as_f64().unwrap(), entry[y].as_f64().unwrap())).collect()
}

#[test]
fn tensorboard_events_have_the_scores_of_the_log() {
    let sandbox = Sandbox::new("report-tensorboard");
    sandbox.succeed(&["train", "--epochs", "2", "--set", "log.tensorboard=true", "--out", "run", "--quiet"]);
    let mut files = std::fs::read_dir(sandbox.path("run/tensorboard")).unwrap().map(|entry| entry.unwrap().path());
    let path = files.next().unwrap();
    assert!(path.file_name().unwrap().to_str().unwrap().contains("tfevents") && files.next().is_none());
    let bytes = std::fs::read(path).unwrap();
    let has = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    for part in [
        "brain.Event:2",
        "loss/training",
        "loss/validation",
        "accuracy/training",
        "weights/conv2d/kernel",
        "first batch/x",
        "plan",
        "configuration",
    ] {
        assert!(has(part.as_bytes()), "{part}");
    }
    for line in lines(&sandbox.path("run/log.jsonl")) {
        assert!(has(&(line["loss"].as_f64().unwrap() as f32).to_le_bytes()), "the loss of an epoch");
    }
}
