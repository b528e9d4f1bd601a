//! `plimsoll profile`: every op is timed, and its files are read by the tools they are for.

use crate::Sandbox;
use serde_json::Value;

#[test]
fn every_op_of_the_step_is_timed_once() {
    let sandbox = Sandbox::new("profile");
    let flags = ["profile", "--steps", "4", "--trace", "trace.json", "--memory-viz", "snapshot.pickle", "--report", "page.html"];
    let profile = sandbox.json(&[&flags[..], &["--json", "--host-memory", "64MiB"]].concat());
    assert_eq!(profile["steps"], 4);
    let ops = profile["ops"].as_array().unwrap();
    let placement = sandbox.succeed(&["plan", "--log-placement", "--host-memory", "64MiB"]);
    let steps = placement.split("\nstep on cpu\n").nth(1).unwrap().split("\nevaluate").next().unwrap();
    let times: std::collections::BTreeSet<&str> = steps.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(ops.len(), times.len(), "one for every op of the plan");
    for op in ops {
        assert!(op["seconds"].as_f64().unwrap() > 0.0 && (0.0..=1.0).contains(&op["roofline"].as_f64().unwrap()), "{op}");
    }
    assert!(profile["measured_peak_rss_bytes"].as_u64() <= profile["planned_bytes"].as_u64().map(|bytes| bytes + (8 << 20)));

    let trace: Value = serde_json::from_slice(&std::fs::read(sandbox.path("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!(events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 3).count(), 4 * ops.len(), "every op of every step");
    assert_eq!((named("step 4"), named("wait"), named("memory measured")), (1, 4, 4));
    assert!(named("produce rows") > 0 && named("thread_name") >= 5, "the pipeline's workers have tracks");
    let rows = events.iter().filter(|event| event["name"] == "produce rows").map(|event| event["args"]["rows"].as_u64().unwrap());
    assert!(rows.sum::<u64>() >= 4 * 32, "they produced the rows of all steps");
    for op in ops {
        assert!(op["planned_bytes"].as_u64().unwrap() <= profile["planned_bytes"].as_u64().unwrap(), "{op}");
    }
    assert_eq!(profile["spans"].as_array().unwrap().len(), ops.len(), "every op of the last step, on the time axis");
    let planned = events.iter().filter(|event| event["name"] == "memory planned");
    let most = planned.map(|event| event["args"].as_object().unwrap().values().filter_map(Value::as_f64).sum::<f64>()).fold(0.0, f64::max);
    assert!(most > 0.0 && most <= profile["planned_bytes"].as_f64().unwrap(), "{most}");
    let step = events.iter().find(|event| event["name"] == "step 1").unwrap();
    let inside = |event: &&Value| {
        let (start, end) = (event["ts"].as_f64().unwrap(), event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap());
        let (from, to) = (step["ts"].as_f64().unwrap(), step["ts"].as_f64().unwrap() + step["dur"].as_f64().unwrap());
        start >= from - 1.0 && end <= to + 1.0
    };
    assert_eq!(events.iter().filter(|event| event["tid"] == 3 && event["ph"] == "X").filter(inside).count(), ops.len(), "on one time axis");

    let pickle = std::fs::read(sandbox.path("snapshot.pickle")).unwrap();
    assert_eq!((&pickle[..2], pickle.last()), (&b"\x80\x02"[..], Some(&b'.')));
    let page = std::fs::read_to_string(sandbox.path("page.html")).unwrap();
    assert!(page.contains("\"profile\":{"));
}
