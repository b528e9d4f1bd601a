//! The plan that is printed is the plan that runs, byte for byte, with validation and checkpoints.

use plimsoll::prelude::*;
use plimsoll::{Checkpoints, RunPlan};

fn digits(split: Split) -> Dataset {
    Dataset::digits(split).shuffle(Shuffle::seed(3)).map("x", [scale(1.0 / 16.0)]).batch(64)
}

/// Everything about a plan: the screen, the JSON document, and the certificate with every buffer's offset, size and
/// lifetime.
fn everything(plan: &RunPlan) -> (String, String, String) {
    (plan.to_string(), plan.to_json().to_string(), serde_json::to_string(&plan.memory.certificate()).unwrap())
}

/// Under a generous budget, and under one that forces the planner to act.
#[test]
fn the_printed_plan_is_the_plan_that_runs() {
    let free = Trainer::new(zoo::mlp(10), &digits(Split::Train)).threads(1).plan(&Fit::epochs(1)).unwrap();
    for budget in [Bytes::mib(256), free.minimum + Bytes::mib(2)] {
        let folder = tempfile::tempdir().unwrap();
        let mut trainer = Trainer::new(zoo::mlp(10), &digits(Split::Train)).threads(1).budget(Budget { host: Some(budget), device: None });
        let held_out = digits(Split::Test);
        let mut executed = None;
        let fit = Fit::epochs(2).validate(&held_out).checkpoints(Checkpoints::new(folder.path()).every_steps(5)).on_event(|event| {
            if let Event::Planned { plan, .. } = event {
                executed = Some(everything(plan));
            }
        });
        let plan = trainer.plan(&fit).unwrap();
        let (printed, total, host_budget) = (everything(&plan), plan.total(), plan.host_budget);
        let history = trainer.run(plan, fit).unwrap();
        assert_eq!(executed.as_ref(), Some(&printed));
        assert_eq!((history.planned, history.host_budget), (total, host_budget));
        assert!(printed.0.contains("checkpoint ") && printed.1.contains("\"validation "), "{}\n{}", printed.0, printed.1);
    }
}
