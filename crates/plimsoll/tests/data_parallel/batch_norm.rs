//! Synchronized batch normalization: ranks have the statistics, and train the weights, of one process.

use super::*;

fn network() -> Model {
    let net = Sequential::new().add(Flatten).add(Dense::new(20)).add(BatchNorm::new()).add(Dropout::new(0.2));
    net.add(Dense::new(12)).add(BatchNorm::torch()).add(Dense::new(10)).into()
}

fn with_batch_norm(rows: u64) -> Trainer {
    let trainer = Trainer::new(network(), &self::rows(rows).batch(BATCH)).metrics([Metric::Accuracy]);
    trainer.optimizer(Sgd::new(0.02).momentum(0.9)).clip(Clip::GlobalNorm(1.0)).seed(3).threads(1)
}

/// Weights and moving statistics, also where the last batch has fewer rows than ranks.
#[test]
fn ranks_train_networks_with_batch_normalization_as_one_process_does() {
    for rows in [ROWS, 92] {
        let fit = || Fit::epochs(2).validate(&held_out());
        let alone = trained(with_batch_norm(rows), fit());
        for ranks in [2, 3, 7] {
            let of_ranks = on_ranks(ranks, |ranks| trained(with_batch_norm(rows).ranks(&ranks), fit()));
            check("batch normalization", &alone, &of_ranks);
        }
    }
    let images = || Dataset::random(RandomSpec::new(41).seed(4).floats("x", [8, 8, 3]).labels("y", 4)).unwrap().batch(12);
    let convolutions = || -> Model {
        let net = Sequential::new().add(Conv2D::new(6, 3)).add(BatchNorm::new()).add(Conv2D::new(8, 3)).add(BatchNorm::torch());
        net.add(GlobalAveragePool).add(Dense::new(4)).into()
    };
    let trainer = || Trainer::new(convolutions(), &images()).optimizer(Sgd::new(0.02)).seed(3).threads(1);
    let alone = trained(trainer(), Fit::epochs(2));
    for ranks in [2, 7] {
        check("convolutions", &alone, &on_ranks(ranks, |ranks| trained(trainer().ranks(&ranks), Fit::epochs(2))));
    }
}

#[test]
fn another_number_of_ranks_resumes_synchronized_statistics() {
    let alone = trained(with_batch_norm(ROWS), Fit::epochs(2));
    let folder = tempfile::tempdir().unwrap();
    let fit = || Fit::epochs(2).checkpoints(Checkpoints::new(folder.path()).every_steps(1).keep(100)).resume(true);
    for (ranks, step) in [(4, 2), (2, 5)] {
        check("resumed", &alone, &on_ranks(ranks, |ranks| trained(with_batch_norm(ROWS).ranks(&ranks), fit())));
        keep_until(folder.path(), step);
    }
    check("resumed", &alone, &[trained(with_batch_norm(ROWS), fit())]);
}

#[test]
fn synchronized_statistics_are_those_of_whole_batches() {
    let in_pieces = |ranks: Ranks| with_batch_norm(ROWS).micro_batch(5).ranks(&ranks).fit(Fit::epochs(1));
    insta::assert_snapshot!(refused(2, in_pieces), @"batch normalization is synchronized over whole batches, but each of 2 ranks would compute its 15 rows in micro-batches of 5; leave `train.micro_batch` out, or set `parallel.batch_norm` to \"local\"");
    let allow = Allow::default().with(Permission::MicrobatchBatchnorm);
    let plan = with_batch_norm(ROWS).allow(allow).plan_for_ranks(2).plan(&Fit::epochs(1)).unwrap();
    assert!(plan.synchronized && plan.used.is_empty() && plan.results_unchanged, "{plan}");
    assert!(!with_batch_norm(ROWS).plan(&Fit::epochs(1)).unwrap().synchronized);
}
