//! Models with several outputs: a loss, a label column and metrics for each, one total loss.

use plimsoll::config::Config;
use plimsoll::nn::{Concatenate, Flatten, Functional, Model, Regularizer};
use plimsoll::prelude::*;
use plimsoll::{Checkpoints, Predicted, Scores, Tensor};
use serde_json::Value;
use std::path::{Path, PathBuf};

const REFERENCE: &str = include_str!("references/outputs.json");

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("plimsoll-outputs-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Writes tensors as safetensors.
fn put_weights(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, numbers) in tensors {
        let start = data.len();
        data.extend(numbers.iter().flat_map(|x| x.to_le_bytes()));
        header.insert(name.clone(), serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }));
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    std::fs::write(path, file).unwrap();
}

/// The tensors of a safetensors file by name.
fn weights(path: &Path) -> Vec<(String, Vec<f32>)> {
    let file = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__").map(|(name, entry)| {
        let at = |i: usize| 8 + length + entry["data_offsets"][i].as_u64().unwrap() as usize;
        let numbers = file[at(0)..at(1)].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
        (name, numbers.collect())
    });
    tensors.collect()
}

fn near(what: &str, got: &[f32], want: &[f32], within: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= within, "{what} differs by {worst}");
}

#[test]
fn losses_metrics_and_weights_match_keras() {
    let reference: Value = serde_json::from_str(REFERENCE).unwrap();
    let rows = reference["rows"].as_u64().unwrap() as usize;
    let kinds: Vec<i32> = numbers(&reference["kind"]).iter().map(|kind| *kind as i32).collect();
    let data = Dataset::from_tensor_slices([
        ("size", Tensor::f32([rows, 2], numbers(&reference["size"])).unwrap()),
        ("x", Tensor::f32([rows, 5], numbers(&reference["x"])).unwrap()),
        ("kind", Tensor::i32([rows], kinds).unwrap()),
    ]);
    let data = data.unwrap().batch(reference["batch"].as_u64().unwrap() as usize);
    let mut net = Functional::new("two");
    let x = net.input();
    let hidden = net.named("hidden", Dense::new(4).activation(Activation::Tanh).regularizer(Regularizer { l1: 0.0, l2: 0.01 }), [x]);
    let (kind, size) = (net.named("kind", Dense::new(3), [hidden]), net.named("size", Dense::new(2), [hidden]));
    let model = net.build_many([("kind", kind), ("size", size)]);

    let folder = folder("keras");
    let path = folder.join("weights.safetensors");
    let first = reference["first"].as_object().unwrap().iter().map(|(name, values)| {
        let shape = reference["shapes"][name].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize);
        (name.clone(), shape.collect(), numbers(values))
    });
    put_weights(&path, &first.collect::<Vec<_>>());

    for micro_batch in [8, 3] {
        let mut trainer = Trainer::new(model.clone(), &data).optimizer(Sgd::new(0.2)).micro_batch(micro_batch).losses([
            ("size", OutputLoss::new(Loss::MeanSquaredError).weight(0.3).metrics([Metric::MeanAbsoluteError])),
            ("kind", Loss::SoftmaxCrossEntropy.into()),
        ]);
        trainer.load_weights(&path).unwrap();
        let history = trainer.fit(Fit::epochs(reference["epochs"].as_u64().unwrap()).validate(&data)).unwrap();
        let names = history.epochs[0].score_names();
        let own = ["loss", "kind_loss", "size_loss", "kind_accuracy", "size_mae"];
        assert_eq!(names, own.iter().map(|name| name.to_string()).chain(own.map(|name| format!("val_{name}"))).collect::<Vec<_>>());
        for name in names {
            let got: Vec<f32> = history.epochs.iter().map(|epoch| epoch.score(&name).unwrap() as f32).collect();
            near(&name, &got, &numbers(&reference["history"][&name]), 2e-6);
        }
        let after = folder.join("after.safetensors");
        trainer.save_weights(&after).unwrap();
        for (name, values) in weights(&after) {
            near(&name, &values, &numbers(&reference["last"][&name]), 2e-6);
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Outputs of two and three numbers, or of five.
fn measured(batch: usize) -> Dataset {
    Dataset::random(RandomSpec::new(50).seed(3).floats("x", [6]).floats("few", [2]).floats("many", [3])).unwrap().batch(batch)
}

fn two_headed() -> Model {
    let mut net = Functional::new("two");
    let x = net.input();
    let hidden = net.named("hidden", Dense::new(7).relu(), [x]);
    let (few, many) = (net.named("few", Dense::new(2), [hidden]), net.named("many", Dense::new(3), [hidden]));
    net.build_many([("few", few), ("many", many)])
}

fn two_losses() -> [(&'static str, OutputLoss); 2] {
    let mse = || OutputLoss::new(Loss::MeanSquaredError);
    [("few", mse().weight(0.4)), ("many", mse().weight(0.6).metrics([Metric::MeanAbsoluteError, Metric::R2]))]
}

#[test]
fn the_weighted_sum_matches_a_model_with_concatenated_outputs() {
    // The mean over five numbers is 2/5 of the mean over two plus 3/5 of the mean over three.
    let ledger = plimsoll_core::Ledger::new("host", None);
    let apart = measured(50);
    let options = plimsoll_data::Options { epochs: Some(1), ..Default::default() };
    let mut feed = plimsoll_data::Feed::start(&apart, &apart.plan(None).unwrap(), &ledger, options).unwrap();
    let batch = feed.next().unwrap().unwrap();
    let column = |i: usize| batch.column(i).chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect::<Vec<f32>>();
    let (x, few, many) = (column(0), column(1), column(2));
    let five: Vec<f32> = (0..50).flat_map(|row| [&few[2 * row..][..2], &many[3 * row..][..3]].concat()).collect();
    let joined = Dataset::from_tensor_slices([("x", Tensor::f32([50, 6], x).unwrap()), ("y", Tensor::f32([50, 5], five).unwrap())]);
    let joined = joined.unwrap().batch(20);

    let mut net = Functional::new("one");
    let x = net.input();
    let hidden = net.named("hidden", Dense::new(7).relu(), [x]);
    let (few, many) = (net.named("few", Dense::new(2), [hidden]), net.named("many", Dense::new(3), [hidden]));
    let five = net.add(Concatenate, [few, many]);
    let one = net.build(five);

    let folder = folder("joined");
    let train = |trainer: Trainer, name: &str| {
        let mut trainer = trainer.optimizer(Sgd::new(0.1).momentum(0.9)).seed(4);
        let history = trainer.fit(Fit::epochs(4)).unwrap();
        let path = folder.join(name);
        trainer.save_weights(&path).unwrap();
        (history.last().unwrap().training.loss, weights(&path))
    };
    let (expected, single) = train(Trainer::new(one, &joined).loss(Loss::MeanSquaredError), "one");
    for micro_batch in [20, 6, 1] {
        let (loss, double) = train(Trainer::new(two_headed(), &measured(20)).losses(two_losses()).micro_batch(micro_batch), "two");
        assert!((loss - expected).abs() < 1e-6, "{loss} instead of {expected}");
        for ((name, values), (same, expected)) in double.iter().zip(&single) {
            assert_eq!(name, same);
            near(name, values, expected, 2e-6);
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn predict_returns_every_output() {
    let mut trainer = Trainer::new(two_headed(), &measured(20)).losses(two_losses());
    let all = trainer.predict_all(&measured(20)).unwrap();
    let shapes: Vec<(&str, &[usize], usize)> =
        all.iter().map(|Predicted { name, shape, values }| (&name[..], &shape[..], values.len())).collect();
    assert_eq!(shapes, [("few", &[2][..], 100), ("many", &[3][..], 150)]);
    let mut many = Vec::new();
    trainer.predict_with(&measured(7), |piece| many.extend_from_slice(piece.output("many").unwrap())).unwrap();
    assert_eq!(many, all[1].values);
    let error = trainer.predict(&measured(20)).unwrap_err().to_string();
    assert_eq!(error, "the model has the outputs few, many; use `predict_all` or `predict_with` to get all of them");
}

#[test]
fn a_run_with_several_losses_resumes_exactly() {
    let folder = folder("resumed");
    let classes = || Dataset::random(RandomSpec::new(70).seed(5).floats("x", [6]).labels("few", 2).labels("many", 3)).unwrap().batch(10);
    let targets = || {
        let counted = |metrics: &[Metric]| OutputLoss::new(Loss::SoftmaxCrossEntropy).metrics(metrics.to_vec());
        [("few", counted(&[Metric::Accuracy, Metric::F1])), ("many", counted(&[Metric::Recall, Metric::TopK(2)]).weight(0.5))]
    };
    let finish = |resume: bool| {
        let checkpoints = Checkpoints::new(&folder).keep(100).every_steps(3).best("val_many_loss");
        let mut trainer = Trainer::new(two_headed(), &classes()).losses(targets());
        let history = trainer.fit(Fit::epochs(3).validate(&classes()).checkpoints(checkpoints).resume(resume)).unwrap();
        let scores: Vec<Scores> = history.epochs.into_iter().map(|epoch| epoch.training).collect();
        (scores, trainer.predict_all(&classes()).unwrap())
    };
    let whole = finish(false);
    let names: Vec<&str> = whole.0[0].iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["loss", "few_loss", "many_loss", "few_accuracy", "few_f1", "many_recall", "many_top2"]);
    // Only the last epoch has values per class.
    let classes: Vec<(&str, usize)> = whole.0[2].per_class.iter().map(|(name, values)| (&name[..], values.len())).collect();
    assert_eq!(classes, [("few_f1", 2), ("many_recall", 3)]);
    for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
        // Seven steps an epoch: the checkpoint at step 12 is in the middle of the second.
        if entry.file_name().to_string_lossy().as_ref() > "step-000000000012.safetensors" {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    assert_eq!(finish(true), whole);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn mismatched_losses_and_outputs_are_refused() {
    let plan = |trainer: Trainer| trainer.refusal();
    let two = || Trainer::new(two_headed(), &measured(20));
    let mse = || OutputLoss::new(Loss::MeanSquaredError);
    let errors = [
        plan(two().loss(Loss::MeanSquaredError)),
        plan(two().losses([("few", mse())])),
        plan(two().losses([("few", mse()), ("many", mse()), ("more", mse())])),
        plan(two().losses([("few", mse()), ("few", mse())])),
        plan(two().losses([("few", mse().labels("some")), ("many", mse())])),
        plan(two().losses([("few", mse().weight(-1.0)), ("many", mse())])),
        plan(two().losses([("few", mse()), ("many", OutputLoss::new(Loss::SoftmaxCrossEntropy.ignore_class(1)))])),
        plan(two().losses([("few", mse()), ("many", mse().labels("few"))])),
        plan(two().losses([("few", mse()), ("many", mse())]).metrics([Metric::R2])),
        plan(Trainer::new(two_headed(), &Dataset::digits(Split::Train).map("x", [scale(1.0)]).batch(9)).losses(two_losses())),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

trait Refusal {
    fn refusal(self) -> String;
}

impl Refusal for Trainer {
    fn refusal(self) -> String {
        self.plan(&Fit::epochs(1)).unwrap_err().to_string()
    }
}

const TWO_HEADS: &str = r#"
[model]
outputs = ["digit", "odd"]
layers = [
    { type = "flatten" },
    { type = "dense", name = "hidden", units = 32, activation = "relu" },
    { type = "dense", name = "digit", units = 10 },
    { type = "dense", name = "odd", units = 10, inputs = ["hidden"] },
]
[data]
source = "digits"
[train]
epochs = 4
csv_log = true
loss = { digit = { type = "softmax_cross_entropy", labels = "y" }, odd = { type = "categorical_focal", gamma = 1.0, labels = "y", weight = 0.3, metrics = ["top3"], label_smoothing = 0.1 } }
"#;

/// Plans and trains the run of a configuration, and writes its folder.
fn train_in(folder: &std::path::Path, config: &Config) -> plimsoll::Result<plimsoll::History> {
    let trainer = Trainer::from(config.build()?);
    let plan = trainer.plan(&trainer.described_fit())?;
    plimsoll::RunFolder::open(folder, plimsoll::Existing::Refuse)?.train(trainer, plan, &plimsoll::StopHandle::new(), |_| ())
}

#[test]
fn configurations_set_a_loss_per_output() {
    let folder = folder("config");
    train_in(&folder, &Config::from_text(TWO_HEADS).unwrap()).unwrap();
    let log = std::fs::read_to_string(folder.join("log.csv")).unwrap();
    let header = log.lines().next().unwrap();
    assert!(
        header.ends_with(
            "seconds,learning_rate,loss,digit_loss,odd_loss,digit_accuracy,odd_top3,val_loss,val_digit_loss,val_odd_loss,val_digit_accuracy,val_odd_top3"
        ),
        "{header}"
    );
    let report: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("report.json")).unwrap()).unwrap();
    let last = &report["epochs"][3];
    let score = |name: &str| last[name].as_f64().unwrap();
    assert!((score("loss") - score("digit_loss") - 0.3 * score("odd_loss")).abs() < 1e-5, "{last}");
    assert!(score("val_digit_accuracy") > 0.6 && score("val_odd_top3") > 0.6, "{last}");
    std::fs::remove_dir_all(&folder).unwrap();

    let error = |setting: &str| {
        let mut config = Config::from_text(TWO_HEADS).unwrap();
        config.set(setting).unwrap();
        config.build().and_then(|spec| Trainer::from(spec).plan(&Fit::epochs(1))).map(drop).unwrap_err().to_string()
    };
    let errors = [
        error("train.loss=mse"),
        error("train.loss={ digit = \"mse\" }"),
        error("train.loss={ digit = \"msr\", odd = \"mse\" }"),
        error("train.loss={ digit = { weight = 0.5 }, odd = \"mse\" }"),
        error("train.loss={ digit = { type = \"mse\", wieght = 0.5 }, odd = \"mse\" }"),
        error("train.loss={ digit = \"mse\", odd = \"mse\" }"),
        error("train.loss={ digit = 3, odd = \"mse\" }"),
        error("train.label_smoothing=0.1"),
        error("train.metrics=[\"accuracy\"]"),
        error("model.outputs=[\"digit\", \"even\"]"),
        error("model.outputs=[\"digit\"]"),
        error("model.outputs=[]"),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

/// Rows from several files, one column each.
#[test]
fn npy_files_are_columns() {
    let folder = folder("files");
    let npy = |name: &str, descr: &str, shape: &str, bytes: &[u8]| {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        header += &" ".repeat(64 - (11 + header.len()) % 64);
        header.push('\n');
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(bytes);
        std::fs::write(folder.join(name), file).unwrap();
    };
    let floats = |count: usize| (0..count).flat_map(|i| (i as f32 / 10.0).to_le_bytes()).collect::<Vec<u8>>();
    let classes: Vec<u8> = (0..8i32).flat_map(|i| (i % 3).to_le_bytes()).collect();
    npy("a.npy", "<f4", "(8, 4)", &floats(32));
    npy("b.npy", "<i4", "(8,)", &classes);
    npy("c.npy", "<f4", "(8, 2)", &floats(16));
    let text = r#"
        [model]
        outputs = ["kind", "size"]
        layers = [{ type = "dense", name = "kind", units = 3 }, { type = "dense", name = "size", units = 2, inputs = ["input"] }]
        [data]
        source = "npy"
        files = { x = "a.npy", kind = "b.npy", size = "c.npy" }
        [train]
        loss = { kind = "softmax_cross_entropy", size = "mse" }
    "#;
    std::fs::write(folder.join("run.toml"), text).unwrap();
    let config = Config::read(&folder.join("run.toml")).unwrap();
    let (anchored, text) = (folder.join("a.npy"), config.build().unwrap().config);
    assert!(text.contains(&*anchored.to_string_lossy()), "{text}");
    train_in(&folder.join("run"), &config).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_single_output_takes_any_label_column() {
    let data = measured(25);
    let model = || Sequential::new().add(Flatten).add(Dense::new(3));
    let mut named = Trainer::new(model(), &data).loss(OutputLoss::new(Loss::MeanSquaredError).labels("many"));
    let history = named.fit(Fit::epochs(2)).unwrap();
    assert_eq!(history.epochs[0].score_names(), ["loss"]);
    assert!(Trainer::new(model(), &data).loss(Loss::MeanSquaredError).plan(&Fit::epochs(1)).is_err(), "two numbers are not three");
}
