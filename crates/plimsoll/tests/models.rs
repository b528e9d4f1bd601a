//! Models: shared, frozen and regularized weights; several inputs; batch statistics of partial micro-batches.

use plimsoll::nn::{Add, BatchNorm, Concatenate, Embedding, Flatten, Functional, MultiHeadAttention, Regularizer, TakeStep};
use plimsoll::optim::Sgd;
use plimsoll::prelude::*;
use std::collections::BTreeMap;

/// All weights by name.
fn weights(trainer: &mut Trainer, name: &str) -> BTreeMap<String, Vec<f32>> {
    let path = std::env::temp_dir().join(format!("plimsoll-models-{}-{name}", std::process::id()));
    trainer.save_weights(&path).unwrap();
    let file = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let entries: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&file[8..8 + header]).unwrap();
    let tensors = entries.into_iter().filter(|(name, _)| name != "__metadata__").map(|(name, entry)| {
        let [from, to] = [0, 1].map(|i| 8 + header + entry["data_offsets"][i].as_u64().unwrap() as usize);
        (name, file[from..to].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect())
    });
    tensors.collect()
}

/// Rows whose features are all this number, with labels.
fn constant(rows: u64, number: f32, features: usize) -> Dataset {
    let spec = RandomSpec::new(rows).seed(1).floats("x", [features]).floats("y", [1]);
    Dataset::random(spec).unwrap().map("x", [scale(0.0), normalize([-number], [1.0])])
}

#[test]
fn batch_statistics_of_a_partial_micro_batch() {
    let model: Model = Sequential::new().named("norm", BatchNorm::new().momentum(0.5)).add(Dense::new(1)).into();
    assert!(model.has_batch_statistics());
    let data = constant(10, 3.0, 2).batch(10);
    let mut trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).micro_batch(4);
    trainer.fit(Fit::epochs(1)).unwrap();
    // Micro-batches of 4, 4 and 2 rows; the mean of each is 3 and its variance 0.
    let after = weights(&mut trainer, "ragged");
    assert_eq!(after["norm/moving_mean"], [2.625, 2.625]);
    assert_eq!(after["norm/moving_variance"], [0.125, 0.125]);
}

#[test]
fn frozen_layers_keep_weights_and_statistics() {
    let model: Model =
        Sequential::new().named("norm", BatchNorm::new()).named("body", Dense::new(4).relu()).named("head", Dense::new(1)).into();
    let model = model.trainable("norm", false).unwrap().trainable("body", false).unwrap();
    assert!(!model.has_batch_statistics());
    let data = constant(8, 1.0, 3).batch(4);
    let mut trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).optimizer(Sgd::new(0.1));
    let before = weights(&mut trainer, "frozen-before");
    trainer.fit(Fit::epochs(2)).unwrap();
    let after = weights(&mut trainer, "frozen-after");
    for (name, tensor) in &after {
        assert_eq!(*tensor == before[name], !name.starts_with("head"), "{name}");
    }
}

#[test]
fn regularization_is_added_once_for_any_micro_batch() {
    for micro_batch in [6, 4, 1] {
        let regularizer = Regularizer { l1: 0.25, l2: 0.5 };
        let model: Model = Sequential::new().named("dense", Dense::new(1).bias(false).regularizer(regularizer)).into();
        // With zero features only the regularization changes the weights.
        let data = constant(6, 0.0, 3).batch(6);
        let mut trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).optimizer(Sgd::new(0.1)).micro_batch(micro_batch);
        let before = weights(&mut trainer, &format!("cost-before-{micro_batch}"));
        trainer.fit(Fit::epochs(1)).unwrap();
        let after = weights(&mut trainer, &format!("cost-after-{micro_batch}"));
        for (before, after) in before["dense/kernel"].iter().zip(&after["dense/kernel"]) {
            let expected = before - 0.1 * (0.25 * before.signum() + 2.0 * 0.5 * before);
            assert!((after - expected).abs() < 1e-6, "pieces of {micro_batch}: {before} became {after}, not {expected}");
        }
    }
}

#[test]
fn a_shared_layer_has_one_set_of_weights() {
    let mut net = Functional::new("twice");
    let x = net.input();
    let once = net.named("shared", Dense::new(3).activation(Activation::Tanh), [x]);
    let twice = net.reuse(once, [once]);
    let last = net.named("head", Dense::new(1), [twice]);
    let model = net.build(last);
    assert_eq!(model.summary(&[3]).unwrap().parameters(), 12 + 4);
    let data = constant(8, 1.0, 3).batch(4);
    let mut trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).optimizer(Sgd::new(0.1));
    let history = trainer.fit(Fit::epochs(5)).unwrap();
    assert!(history.epochs[4].training.loss < history.epochs[0].training.loss);
    assert_eq!(weights(&mut trainer, "twice").len(), 4);
}

#[test]
fn tied_embeddings_are_one_tensor() {
    let mut net = Functional::new("echo");
    let tokens = net.input();
    let embedding = Embedding::new(5, 8);
    let scores = embedding.scores();
    let vectors = net.named("tokens", embedding, [tokens]);
    let last = net.add(TakeStep::last(), [vectors]);
    let echoed = net.tied(vectors, scores, [last]);
    let model = net.build(echoed);
    let spec = RandomSpec::new(32).seed(2).classes("x", [3], 5).labels("y", 5);
    let data = Dataset::random(spec).unwrap().batch(32);
    let mut trainer = Trainer::new(model, &data).optimizer(Adam::new(0.05));
    let history = trainer.fit(Fit::epochs(12)).unwrap();
    assert!(history.epochs[11].training.loss < history.epochs[0].training.loss);
    let tensors = weights(&mut trainer, "echo");
    assert_eq!(tensors.keys().map(String::as_str).collect::<Vec<_>>(), ["tokens/embeddings"]);
}

#[test]
fn model_inputs_are_columns_by_name() {
    let mut net = Functional::new("two");
    let (a, b) = (net.input_named("a"), net.input_named("b"));
    let (left, right) = (net.add(Dense::new(4).relu(), [a]), net.add(Dense::new(4).relu(), [b]));
    let both = net.add(Concatenate, [left, right]);
    let last = net.add(Dense::new(1), [both]);
    let model = net.build(last);
    let data = Dataset::random(RandomSpec::new(16).floats("b", [2]).floats("y", [1]).floats("a", [3])).unwrap().batch(8);
    let mut trainer = Trainer::new(model.clone(), &data).loss(Loss::MeanSquaredError);
    let history = trainer.fit(Fit::epochs(8)).unwrap();
    assert!(history.epochs[7].training.loss < history.epochs[0].training.loss);
    assert_eq!(weights(&mut trainer, "two")["dense/kernel"].len(), 12);

    let poorer = Dataset::random(RandomSpec::new(16).floats("b", [2]).floats("y", [1])).unwrap().batch(8);
    let error = Trainer::new(model, &poorer).loss(Loss::MeanSquaredError).plan(&Fit::epochs(1)).unwrap_err();
    assert_eq!(error.to_string(), "the model reads a column `a`, but the data has only b: f32[2], y: f32[1]");
}

#[test]
fn invalid_models_are_refused() {
    let mut net = Functional::new("loose");
    let x = net.input();
    let used = net.add(Dense::new(2), [x]);
    net.named("loose", Dense::new(3), [x]);
    let error = net.build(used).summary(&[4]).unwrap_err();
    assert_eq!(error.to_string(), "layer `loose`: does not reach an output of the model; connect or remove it");

    let mut net = Functional::new("normed twice");
    let x = net.input();
    let once = net.add(BatchNorm::new(), [x]);
    let twice = net.reuse(once, [once]);
    let sum = net.add(Add, [once, twice]);
    let data = constant(4, 1.0, 2).batch(4);
    let error = Trainer::new(net.build(sum), &data).loss(Loss::MeanSquaredError).plan(&Fit::epochs(1)).unwrap_err();
    assert_eq!(error.to_string(), "layer `batch_norm`: cannot be shared: its moving statistics would be updated twice in one step");

    let mut net = Functional::new("tied");
    let tokens = net.input();
    let vectors = net.named("tokens", Embedding::new(5, 8), [tokens]);
    let scores = net.tied(vectors, Embedding::new(6, 8).scores(), [vectors]);
    let spec = RandomSpec::new(4).classes("x", [3], 5).classes("y", [3], 5);
    let data = Dataset::random(spec).unwrap().batch(4);
    let error = Trainer::new(net.build(scores), &data).plan(&Fit::epochs(1)).unwrap_err();
    assert_eq!(error.to_string(), "layer `tokens`: shares the weight `tokens/embeddings` of type f32[5, 8], but needs f32[6, 8]");
}

#[test]
fn the_summary_lists_layers_shapes_and_parameters() {
    let mut net = Functional::new("small");
    let x = net.input();
    let x = net.block("body", |net| {
        let x = net.add(Dense::new(8), [x]);
        net.add(BatchNorm::new(), [x])
    });
    let last = net.named("head", Dense::new(2), [x]);
    let summary = net.build(last).summary(&[4]).unwrap().to_string();
    let expected = "small\n  layer            kind        output  parameters\n  body/dense       dense       [B, 8]          40\n  \
                    body/batch_norm  batch_norm  [B, 8]          16\n  head             dense       [B, 2]          18\n  \
                    74 parameters · 16 non-trainable";
    assert_eq!(summary, expected);
}

/// The dropout mask depends on the row's position in the batch, not on micro-batches; predictions have no dropout.
#[test]
fn attention_dropout_is_independent_of_micro_batches() {
    let data = || Dataset::random(RandomSpec::new(60).seed(2).floats("x", [9, 8]).floats("y", [2])).unwrap().batch(20);
    let train = |dropout: f32, micro_batch: usize, threads: usize| {
        let attention = MultiHeadAttention::new(2).causal().dropout(dropout);
        let model = Sequential::new().add(attention).add(Flatten).add(Dense::new(2));
        let mut trainer = Trainer::new(model, &data()).loss(Loss::MeanSquaredError).optimizer(Sgd::new(0.1));
        trainer = trainer.micro_batch(micro_batch).threads(threads).seed(4);
        let before = trainer.predict(&data()).unwrap();
        let loss = trainer.fit(Fit::epochs(3)).unwrap().last().unwrap().training.loss;
        (before, trainer.predict(&data()).unwrap(), loss)
    };
    let (before, whole, loss) = train(0.5, 20, 1);
    assert_eq!(before, train(0.0, 20, 1).0, "what is not trained on is not dropped");
    assert_ne!(whole, train(0.0, 20, 1).1);
    assert_eq!((&whole, loss), (&train(0.5, 20, 3).1, loss), "any number of threads");
    for micro_batch in [1, 7, 10] {
        let (_, pieces, _) = train(0.5, micro_batch, 1);
        let worst = whole.iter().zip(&pieces).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "pieces of {micro_batch}: {worst}");
    }
    let model = Sequential::new().add(MultiHeadAttention::new(2).dropout(1.0)).add(Flatten).add(Dense::new(2));
    let error = Trainer::new(model, &data()).loss(Loss::MeanSquaredError).plan(&Fit::epochs(1)).unwrap_err().to_string();
    assert_eq!(error, "layer `multi_head_attention`: the dropout rate should be from 0 to below 1, but is 1");
}

/// The digits as raw rows: the first `count` of the validation data, before any preprocessing.
fn raw_digits(count: usize) -> plimsoll::Tensor {
    let data = Dataset::digits(Split::Test).take(count as u64).batch(count);
    let plan = data.plan(None).unwrap();
    let ledger = plimsoll_core::Ledger::new("host", None);
    let mut feed = plimsoll_data::Feed::start(&data, &plan, &ledger, plimsoll_data::Options::default()).unwrap();
    let rows = feed.next().unwrap().unwrap().column(0).to_vec();
    plimsoll::Tensor::u8([count, 8, 8, 1], rows).unwrap()
}

#[test]
fn a_loaded_model_predicts_raw_rows_within_a_budget() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = plimsoll::config::Config::digits();
    config.set("train.epochs=1").unwrap();
    let trainer = Trainer::from(config.build().unwrap());
    let run = plimsoll::RunFolder::open(&folder.path().join("run"), plimsoll::Existing::Refuse).unwrap();
    let plan = trainer.plan(&run.fit(&trainer)).unwrap();
    run.train(trainer, plan, &plimsoll::StopHandle::new(), |_| ()).unwrap();
    drop(run);
    let path = folder.path().join("run");

    let mut expected: Vec<f32> = Vec::new();
    let trained = plimsoll::Trained::open(&path, None, |_| Ok(())).unwrap();
    trained.predict(|piece, _| expected.extend_from_slice(piece.values)).unwrap();
    let mut model = Model::load(&path).unwrap().budget("64MiB".parse().unwrap());
    let predictions = model.predict(&raw_digits(100)).unwrap();
    assert_eq!(predictions.values(), &expected[..1000]);
    assert_eq!(predictions.kinds, [plimsoll::OutputKind::Classes { count: 10, logits: true }]);
    let (class, probability) = predictions.best(7);
    assert!(predictions.row(7).iter().all(|score| *score <= predictions.row(7)[class]) && probability > 0.1);
    assert!((predictions.probabilities(7).iter().sum::<f32>() - 1.0).abs() < 1e-5);
    assert_eq!(model.predict(&raw_digits(3)).unwrap().values(), &expected[..30], "the same memory, for fewer rows");

    let refused = |result: plimsoll::Result<plimsoll::Predictions>| result.map(|_| ()).unwrap_err().to_string();
    let error = refused(Model::load(&path).unwrap().budget("1MiB".parse().unwrap()).predict(&raw_digits(3)));
    assert!(error.contains("minimum") || error.contains("needs"), "{error}");
    let error = refused(model.predict("no/such.csv"));
    assert_eq!(error, "this model was trained on arrays; give it one .npy file whose first dimension is the row, not no/such.csv");
    let wrong = plimsoll::Tensor::f32([2, 5], vec![0.0; 10]).unwrap();
    assert!(refused(model.predict(&wrong)).contains("5"), "the shape is named");
}

#[test]
fn models_of_other_programs_load_and_predict_what_they_predict() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references");
    let numbers = |tensor: &serde_json::Value| -> Vec<f32> {
        tensor["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
    };
    // Outputs of onnxruntime and of Keras.
    for (kind, file) in [("onnx", "residual.onnx"), ("onnx", "channels_last.onnx"), ("keras", "images.keras"), ("keras", "graph.h5")] {
        let cases = std::fs::read_to_string(folder.join(kind).join("models.json")).unwrap();
        let cases: Vec<serde_json::Value> = serde_json::from_str(&cases).unwrap();
        let case = cases.iter().find(|case| case["file"] == file).unwrap();
        let shape: Vec<usize> = case["inputs"][0]["shape"].as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap() as usize).collect();
        let mut model = Model::load(folder.join(kind).join(file)).unwrap().budget("64MiB".parse().unwrap());
        let predictions = model.predict(&plimsoll::Tensor::f32(shape, numbers(&case["inputs"][0])).unwrap()).unwrap();
        for (output, wanted) in predictions.outputs.iter().zip(case["outputs"].as_array().unwrap()) {
            let wanted = numbers(wanted);
            assert_eq!(output.values.len(), wanted.len(), "{file}");
            let largest = wanted.iter().fold(0f32, |most, number| most.max(number.abs()));
            let difference = output.values.iter().zip(&wanted).fold(0f32, |most, (got, wanted)| most.max((got - wanted).abs()));
            assert!(difference <= 1e-4 * largest, "{file}: max|Δ| is {difference}, max|reference| {largest}");
        }
    }
}
