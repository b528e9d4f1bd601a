//! Planning for ranks that are not there: what each of them takes, and on how many a run fits.

use super::*;
use plimsoll::optim::Adam;
use plimsoll::{FittingRanks, Infeasible, Precision, RunPlan, Shard};
use plimsoll_core::budget::Owner;

fn of(plan: &RunPlan, owner: Owner) -> u64 {
    plan.owners.iter().find(|(known, _)| *known == owner).map_or(0, |(_, bytes)| bytes.0)
}

/// GPT-2 of another size, with scores of their own.
fn gpt(layers: usize, width: usize, vocabulary: usize, length: usize) -> Model {
    let mut net = Functional::new("gpt");
    let tokens = net.input();
    let vectors = net.add(Embedding::new(vocabulary, width), [tokens]);
    let mut x = net.add(PositionEmbedding::new(length), [vectors]);
    for _ in 0..layers {
        let normed = net.add(LayerNorm::new(), [x]);
        let attended = net.add(MultiHeadAttention::new(width / 128).causal(), [normed]);
        x = net.add(Add, [x, attended]);
        let normed = net.add(LayerNorm::new(), [x]);
        let hidden = net.add(Dense::new(4 * width).relu(), [normed]);
        let out = net.add(Dense::new(width), [hidden]);
        x = net.add(Add, [x, out]);
    }
    let normed = net.add(LayerNorm::new(), [x]);
    let scores = net.add(Dense::new(vocabulary), [normed]);
    net.build(scores)
}

/// The table of the ZeRO paper (Rajbhandari and others, 2020): 7.5 billion parameters with Adam in mixed precision on
/// 64 ranks take 120, 31.4 and 16.6 GB of model states. It counts 2 bytes for a parameter and its gradient, and 12 for
/// what the optimizer has of it. Here, a parameter has 4 bytes, of which the optimizer has no copy, as has an
/// accumulated gradient; Adam has 8. Whole they take the same; of stage 1 and 2, parameters that every rank has take 2
/// bytes more.
#[test]
fn the_table_of_the_zero_paper() {
    let (length, ranks) = (16, 64);
    let spec = RandomSpec::new(2 * ranks as u64).classes("x", vec![length], 512).classes("y", [length], 512);
    let data = Dataset::random(spec).unwrap().batch(2 * ranks);
    let states = |shard: Shard| {
        let parallel = Parallel { shard, ..Parallel::default() };
        let trainer = Trainer::new(gpt(9, 8320, 512, length), &data).optimizer(Adam::default()).precision(Precision::MixedBf16);
        let trainer = trainer.micro_batch(1).threads(1).budget(Budget::host("1TiB").unwrap()).parallel(parallel);
        let plan = trainer.plan_for_ranks(ranks).plan(&Fit::epochs(1)).unwrap();
        [Owner::Weights, Owner::Optimizer, Owner::GradientSums].map(|owner| of(&plan, owner) as f64 / 1e9)
    };
    let [weights, adam, sums] = states(Shard::None);
    let parameters = weights / 4.0;
    assert!((7.4..7.5).contains(&parameters), "{parameters} billion parameters");
    let near = |got: f64, bytes: f64| assert!((got - bytes * parameters).abs() < 1e-3, "{got} GB instead of {}", bytes * parameters);
    near(adam, 8.0);
    near(sums, 4.0);
    let total = |states: [f64; 3]| states.iter().sum::<f64>();
    let n = ranks as f64;
    near(total([weights, adam, sums]), 16.0);
    near(total(states(Shard::Optimizer)), 8.0 + 8.0 / n);
    near(total(states(Shard::Gradients)), 4.0 + 12.0 / n);
    // In the units of the paper.
    let of_paper = |bytes: f64| (bytes * 7.5 * 10.0).round() / 10.0;
    assert_eq!([of_paper(16.0), of_paper(8.0 + 8.0 / n), of_paper(4.0 + 12.0 / n)], [120.0, 60.9, 31.4]);
}

fn planned(ranks: usize, shard: Shard, budget: Option<&str>) -> Result<RunPlan> {
    let model = Sequential::new().add(Flatten).add(Dense::new(2048).relu()).add(Dense::new(2048).relu()).add(Dense::new(10));
    let trainer = Trainer::new(model, &rows(ROWS).batch(32)).optimizer(Adam::default()).threads(1).allow(Allow::NOTHING);
    let trainer = budget.into_iter().fold(trainer, |trainer, budget| trainer.budget(Budget::host(budget).unwrap()));
    trainer.parallel(Parallel { shard, ..Parallel::default() }).plan_for_ranks(ranks).plan(&Fit::epochs(1))
}

fn refusal(ranks: usize, shard: Shard, budget: &str) -> Box<Infeasible> {
    match planned(ranks, shard, Some(budget)) {
        Err(Error::Infeasible(infeasible)) => infeasible,
        other => panic!("{:?}", other.map(|plan| plan.total())),
    }
}

#[test]
fn a_refusal_says_what_the_run_fits_on() {
    // A third of Adam's states is too much.
    let four = planned(4, Shard::Optimizer, None).unwrap();
    let (adam, less) = (of(&four, Owner::Optimizer), of(&four, Owner::Optimizer) / 3);
    assert!(adam > 8 << 20);
    let budget = (four.minimum.0 - less).to_string();
    let refused = refusal(4, Shard::Optimizer, &budget);
    let [FittingRanks { ranks, shard: Shard::Optimizer }] = refused.fits_on[..] else { panic!("{:?}", refused.fits_on) };
    assert!((6..=7).contains(&ranks), "a third less than on 4 ranks on {ranks}");
    assert!(planned(ranks, Shard::Optimizer, Some(&budget)).is_ok());
    assert!(planned(ranks - 1, Shard::Optimizer, Some(&budget)).is_err(), "{} ranks would be enough", ranks - 1);
    let text = refused.to_string();
    let budget_text = plimsoll::Bytes(budget.parse().unwrap());
    let expected =
        format!("this run does not fit into {budget_text} of host memory on each of 4 ranks, but does on {ranks} ranks; the minimum");
    assert!(text.starts_with(&expected), "{text}");
    assert_eq!(refused.to_json()["fits_on"], serde_json::json!([{ "ranks": ranks, "shard": "optimizer" }]));

    // Without shards, more ranks have less rows, which is not enough.
    let refused = refusal(4, Shard::None, &budget);
    let whole = planned(4, Shard::None, None).unwrap();
    assert!(whole.minimum.0 - four.minimum.0 > adam, "{} and {}", whole.minimum, four.minimum);
    assert!(refused.fits_on.is_empty(), "{refused}");
    let refused = refusal(4, Shard::None, &four.minimum.0.to_string());
    assert_eq!(refused.fits_on, [FittingRanks { ranks: 4, shard: Shard::Optimizer }]);
    let text = refused.to_string();
    assert!(text.contains(" on each of 4 ranks, but does on 4 with `parallel.shard = \"optimizer\"`; the minimum"), "{text}");
    // Nothing helps.
    let refused = refusal(4, Shard::Gradients, "16MiB");
    assert!(refused.fits_on.is_empty() && refused.to_string().contains("on each of 4 ranks; the minimum"), "{refused}");
}

#[test]
fn a_plan_has_a_table_of_owners_by_rank() {
    let plan = planned(64, Shard::Optimizer, None).unwrap();
    let text = plan.to_string();
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.contains("ranks 0–63, each")).collect();
    let numbers = |name: &str| -> Vec<&str> {
        let line = lines.iter().find(|line| line.trim_start().starts_with(name)).unwrap_or_else(|| panic!("no {name}: {text}"));
        line.split("  ").map(str::trim).filter(|part| !part.is_empty()).collect()
    };
    for (owner, size) in &plan.owners {
        let all = plimsoll::Bytes(64 * size.0).to_string();
        assert_eq!(numbers(&owner.to_string()), [owner.to_string(), size.to_string(), all]);
    }
    let all = &plan.by_rank_json()[0];
    assert_eq!((&all["ranks"], all["total_bytes"].as_u64()), (&serde_json::json!([0, 63]), Some(plan.total().0)));
    assert_eq!(all["by_owner"]["optimizer"].as_u64(), Some(of(&plan, Owner::Optimizer)));
}
