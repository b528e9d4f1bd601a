//! Compares the memory of a run with its plan.

use super::Trainer;
use crate::checkpoint::Checkpoints;
use crate::error::Error;
use crate::fit::{Event, Fit};
use crate::nn::{Dense, Gru, Sequential};
use crate::plan::{DataSummary, Machine, RunPlan};
use crate::spec::RunSpec;
use crate::zoo;
use plimsoll_core::budget::Owner;
use plimsoll_core::{Budget, Bytes};
use plimsoll_data::ops::scale;
use plimsoll_data::{Dataset, RandomSpec, Split};

fn digits(split: Split) -> Dataset {
    Dataset::digits(split).map("x", [scale(1.0 / 16.0)]).batch(32)
}

fn trainer(budget: &str) -> Trainer {
    Trainer::new(zoo::mlp(10), &digits(Split::Train)).threads(1).budget(Budget::host(budget).unwrap())
}

#[test]
fn the_ledger_of_a_run_has_the_owners_of_its_plan() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer("256MiB");
    let fit = || Fit::epochs(2).validate(&digits(Split::Test)).checkpoints(Checkpoints::new(folder.path()));
    let plan = trainer.plan(&fit()).unwrap();
    trainer.run(plan, fit()).unwrap();
    // Other tests in this process take memory too: the run may have been replanned.
    let session = trainer.session.as_ref().unwrap();
    let (plan, ledger) = (&session.plan, &session.ledger);
    assert!(ledger.peak() <= plan.total(), "{} held, {} planned", ledger.peak(), plan.total());
    // The executor reserves the arena and the resident memory as a whole; the plan names their contents.
    let device = plan.memory.arena + plan.memory.resident;
    let named: Bytes = plan.memory.by_owner().iter().map(|(_, size)| *size).sum();
    assert_eq!(device, named);
    let planned = |owner: &Owner| plan.owners.iter().find(|(known, _)| known == owner).map(|(_, size)| *size);
    let of_device = |owner: &Owner| *owner == Owner::Arena || plan.memory.by_owner().iter().any(|(known, _)| known == owner);
    let (mut on_device, mut own, mut in_pipelines) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
    for usage in ledger.owners() {
        match planned(&usage.owner) {
            _ if of_device(&usage.owner) => on_device += usage.peak,
            None => in_pipelines += usage.peak,
            Some(size) => {
                assert_eq!(usage.peak, size, "{}", usage.owner);
                own += size;
            }
        }
    }
    assert_eq!(on_device, device);
    let pipeline = plan.pipeline_stages.iter().map(|(_, size)| *size).sum::<Bytes>();
    assert!(in_pipelines <= pipeline, "{in_pipelines} held, {pipeline} planned");
    let planning = planned(&Owner::Planning).unwrap_or_default();
    assert_eq!(own + device + pipeline + planning, plan.total(), "every planned byte is reserved");
}

#[test]
fn a_plan_is_a_function_of_its_values_only() {
    let trainer = trainer("256MiB");
    let (machine, data) = (trainer.machine().unwrap(), DataSummary::read(&trainer.spec).unwrap());
    let plan = |spec: &RunSpec| spec.plan(&machine, &data).unwrap();
    let (first, second) = (plan(&trainer.spec), plan(&trainer.spec));
    assert_eq!(first.to_string(), second.to_string());
    assert_eq!(first.to_json(), second.to_json());
    assert_eq!((first.plan_ms, first.memory.certificate()), (0.0, second.memory.certificate()));
}

#[test]
fn a_run_with_less_free_memory_is_replanned_and_says_why() {
    let trainer = trainer("1TiB");
    let fit = Fit::epochs(1).validate(&digits(Split::Test));
    let spec = trainer.spec_of(&fit);
    let (mut machine, data) = (trainer.machine().unwrap(), DataSummary::read(&spec).unwrap());
    let plan = spec.plan(&machine, &data).unwrap();
    machine.free_host = plan.minimum + Bytes::mib(1);
    let (budget, reason) = plan.shortage(&spec, &machine).unwrap();
    assert_eq!(reason, format!("the plan takes {} of host memory, but only {} is free now", plan.total(), machine.free_host));
    let smaller = plan.replanned(&spec, budget, &machine, &data).unwrap();
    assert_eq!((smaller.host_budget, smaller.requested_host_budget), (machine.free_host, Some(plan.host_budget)));
    assert!(smaller.total() <= machine.free_host && smaller.validation.is_some());
    assert!(smaller.shortage(&spec, &machine).is_none());
}

#[test]
fn planning_beyond_the_free_memory_is_refused_before_it_takes_it() {
    let trainer = trainer("1TiB");
    let spec = trainer.spec_of(&Fit::epochs(1));
    let (mut machine, data) = (trainer.machine().unwrap(), DataSummary::read(&spec).unwrap());
    machine.free_host = machine.process;
    let refusal = match spec.plan(&machine, &data) {
        Err(Error::PlanningInfeasible(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert!(refusal.free == machine.process && refusal.planning > machine.process);
    assert!(refusal.to_string().contains(&format!("({} bytes), and only", refusal.planning.0)), "{refusal}");
    // That much is enough to plan, and planning is part of every minimum.
    machine.free_host = refusal.planning;
    let minimum = match spec.plan(&machine, &data) {
        Ok(plan) => plan.minimum,
        Err(Error::Infeasible(infeasible)) => infeasible.minimum,
        Err(other) => panic!("{other:?}"),
    };
    assert!(minimum >= refusal.planning);
}

/// With its minimum free and not a byte more, a run is planned: what planning may take is decided from the same layout
/// as the minimum.
#[test]
fn a_run_that_may_not_recompute_is_planned_where_its_minimum_is_free() {
    for classes in (200..2_000_u32).step_by(150) {
        let data = Dataset::random(RandomSpec::new(64).floats("x", [24, 7]).classes("y", [], classes)).unwrap().batch(8);
        let model = Sequential::new().add(Gru::new(32)).add(Dense::new(classes as usize));
        let trainer = Trainer::new(model, &data).threads(1).allow("offload".parse().unwrap()).budget(Budget::host("1TiB").unwrap());
        let spec = trainer.spec_of(&Fit::epochs(1));
        let (mut machine, data) = (trainer.machine().unwrap(), DataSummary::read(&spec).unwrap());
        let minimum = spec.plan(&machine, &data).unwrap().minimum;
        machine.free_host = minimum;
        let plan = spec.plan(&machine, &data).unwrap_or_else(|error| panic!("{classes} classes in {} bytes: {error}", minimum.0));
        assert_eq!(plan.minimum, minimum);
    }
}

/// What a plan assumes about the machine is compared before it runs: the run is replanned within the same budget, or
/// refused.
#[test]
fn a_machine_that_takes_more_than_the_plan_assumes_is_replanned_or_refused() {
    let trainer = trainer("256MiB");
    let spec = trainer.spec_of(&Fit::epochs(1));
    let (machine, data) = (trainer.machine().unwrap(), DataSummary::read(&spec).unwrap());
    let plan = spec.plan(&machine, &data).unwrap();
    assert!(plan.shortage(&spec, &machine).is_none());
    assert_eq!((plan.assumptions.process, plan.assumptions.thread_stacks), (machine.process, machine.thread_stacks));
    let larger = Machine { process: machine.process + Bytes::mib(8), ..machine.clone() };
    let (budget, reason) = plan.shortage(&spec, &larger).unwrap();
    assert_eq!(reason, format!("the plan assumes {} for the process, which takes {} now", machine.process, larger.process));
    let replanned = plan.replanned(&spec, budget, &larger, &data).unwrap();
    assert_eq!((replanned.assumptions.process, replanned.host_budget), (larger.process, plan.host_budget));
    assert!(replanned.total() <= plan.host_budget && replanned.shortage(&spec, &larger).is_none());
    let huge = Machine { thread_stacks: Bytes::mib(512), ..machine };
    let (budget, reason) = plan.shortage(&spec, &huge).unwrap();
    assert!(reason.starts_with("the plan assumes ") && reason.contains("for the stacks of the threads"), "{reason}");
    assert!(matches!(plan.replanned(&spec, budget, &huge, &data), Err(Error::Infeasible(_))));
}

#[test]
fn a_plan_runs_only_the_fit_it_was_made_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer("256MiB");
    let plan: RunPlan = trainer.plan(&Fit::epochs(1)).unwrap();
    let error = trainer.run(plan.clone(), Fit::epochs(1).validate(&digits(Split::Test))).unwrap_err().to_string();
    assert!(error.starts_with("this plan does not cover the fit's validation; plan with the same `Fit`"), "{error}");
    let error = trainer.run(plan.clone(), Fit::epochs(1).checkpoints(Checkpoints::new(folder.path()))).unwrap_err().to_string();
    assert!(error.starts_with("this plan does not cover the checkpoints"), "{error}");
    trainer.run(plan, Fit::epochs(1)).unwrap();
    // A later fit continues in the same memory, with its own pipelines.
    let fit = Fit::epochs(1).validate(&digits(Split::Test));
    let plan = trainer.plan(&fit).unwrap();
    let mut epochs = Vec::new();
    trainer
        .run(
            plan,
            fit.on_event(|event| {
                if let Event::EpochEnd(epoch) = event {
                    epochs.push(epoch.epoch)
                }
            }),
        )
        .unwrap();
    assert_eq!(epochs, [2]);
}
