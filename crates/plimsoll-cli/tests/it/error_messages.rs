//! Invalid input gives one clear error each, and never a panic.

use super::{Sandbox, npy};

/// A configuration for rows of three numbers and the given rest.
fn config(rest: &str) -> String {
    format!("[data]\nsource = \"npy\"\nx = \"x.npy\"\ny = \"y.npy\"\n{rest}")
}

const DENSE: &str = "[model]\nlayers = [{ type = \"dense\", units = 2 }]\n[train]\nloss = \"mse\"\n";

fn rows(sandbox: &Sandbox) {
    sandbox.write("x.npy", npy("<f4", "(4, 3)", &[0; 48]));
    sandbox.write("y.npy", npy("<f4", "(4, 2)", &[0; 32]));
}

/// The error of a training run under a configuration.
fn refused(sandbox: &Sandbox, text: &str) -> String {
    sandbox.write("run.toml", text);
    let (code, error) = sandbox.fail(&["train", "run.toml", "--out", "out", "--quiet"]);
    assert_eq!(code, 1, "{error}");
    error
}

#[test]
fn unknown_keys_suggest_the_nearest() {
    let sandbox = Sandbox::new("keys");
    insta::assert_snapshot!(sandbox.fail(&["train", "--set", "train.bacth=3"]).1, @"error: unknown key `train.bacth`; did you mean `train.batch`?");
    insta::assert_snapshot!(sandbox.fail(&["train", "--set", "trian.batch=3"]).1, @"error: unknown key `trian`; did you mean `train`?");
    insta::assert_snapshot!(sandbox.fail(&["plan", "--set", "model.zoo=lenet"]).1, @r#"error: `model.zoo` is "lenet", but should be one of digits-cnn, mlp, lenet5, cifar-cnn, vgg16, vgg19, resnet18, resnet34, resnet50, resnet101, mobilenet-v1, mobilenet-v2, densenet121, googlenet, inception-v3, efficientnet-b0, unet, fcn8, segnet, autoencoder, vit-tiny, vit-small, vit-base, gpt2-124m, gpt2-355m, char-gpt, bert-base, lstm, gru; did you mean "lenet5"?"#);
    rows(&sandbox);
    insta::assert_snapshot!(refused(&sandbox, &config("[model]\nlayers = [{ type = \"dense\", unit = 2 }]\n")), @"error: `model.layers[0].units` is missing: the number of outputs");
    insta::assert_snapshot!(refused(&sandbox, &config("[model]\nlayers = [{ type = \"dense\", units = 2, activaton = \"relu\" }]\n")), @"error: unknown key `model.layers[0].activaton`; did you mean `model.layers[0].activation`?");
    insta::assert_snapshot!(refused(&sandbox, &config("[model]\nlayers = [{ type = \"dens\", units = 2 }]\n")), @r#"error: `model.layers[0].type` is "dens", but should be an activation or one of dense, conv2d, conv1d, depthwise_conv2d, separable_conv2d, conv2d_transpose, conv1d_transpose, depthwise_conv1d, separable_conv1d, max_pool2d, average_pool2d, max_pool1d, average_pool1d, global_average_pool, global_max_pool, masked_average_pool, max_unpool2d, up_sampling2d, up_sampling1d, rescaling, normalization, layer_scale, batch_norm, layer_norm, group_norm, rms_norm, flatten, reshape, expand_dims, repeat_vector, permute, zero_padding2d, cropping2d, zero_padding1d, cropping1d, slice, dropout, spatial_dropout, alpha_dropout, gaussian_dropout, gaussian_noise, stochastic_depth, add, subtract, multiply, maximum, minimum, average, concatenate, concatenate_along, prelu, leaky_relu, re_lu, elu, embedding, embedding_scores, compute_mask, position_embedding, sinusoidal_positions, class_token, take_step, multi_head_attention, lstm, gru, simple_rnn, bidirectional, time_distributed; did you mean "dense"?"#);
}

#[test]
fn wrong_values_report_what_is_expected() {
    let sandbox = Sandbox::new("values");
    insta::assert_snapshot!(sandbox.fail(&["train", "--set", "train.batch=0"]).1, @"error: `train.batch` is 0, but should be an integer, 1 or more");
    insta::assert_snapshot!(sandbox.fail(&["train", "--set", "train.epochs=many"]).1, @r#"error: `train.epochs` is "many", but should be an integer, 1 or more"#);
    insta::assert_snapshot!(sandbox.fail(&["train", "--set", "train.loss"]).1, @"error: `train.loss` is not KEY=VALUE, such as train.batch=64");
    insta::assert_snapshot!(sandbox.fail(&["train", "--set", "train.optimizer=adma"]).1, @r#"error: `train.optimizer` is "adma", but should be one of sgd, adam, adamw, rmsprop, adagrad, adafactor, lion, nadam; did you mean "adam"?"#);
    insta::assert_snapshot!(sandbox.fail(&["train", "--set", "budget.host=12XB"]).1, @"error: `budget.host`: `12XB` is not a size; write a number and a unit, such as 256MiB, 2GB or 1048576 (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)");
    insta::assert_snapshot!(sandbox.fail(&["train", "--host-memory", "12XB"]).1, @r"
    error: invalid value '12XB' for '--host-memory <SIZE>': `12XB` is not a size; write a number and a unit, such as 256MiB, 2GB or 1048576 (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)

    For more information, try '--help'.
    ");
}

#[test]
fn out_of_range_numbers_are_refused() {
    let sandbox = Sandbox::new("numbers");
    rows(&sandbox);
    let set = |assignment: &str| sandbox.fail(&["plan", "--set", assignment]).1;
    insta::assert_snapshot!(set("train.threads=1000000"), @"error: `train.threads` is 1000000, but should be at most 1024");
    insta::assert_snapshot!(set("train.optimizer={type=\"adam\", beta1=2}"), @"error: `train.optimizer.beta1` is 2, but should be a number from 0 to below 1");
    insta::assert_snapshot!(set("train.optimizer={type=\"sgd\", lr=1e300}"), @"error: `train.optimizer.lr` is inf, but should be a number of at least 0");
    insta::assert_snapshot!(sandbox.fail(&["plan", "--seed", "18446744073709551615"]).1, @"error: `train.seed` is 18446744073709551615, but should be at most 9223372036854775807");
    let model = |layers: &str| refused(&sandbox, &config(&format!("[model]\nlayers = [{layers}]\n[train]\nloss = \"mse\"\n")));
    insta::assert_snapshot!(model("{ type = \"dense\", units = 4611686018427387904 }, { type = \"dense\", units = 2 }"), @"error: layer `dense`: a tensor f32[3, 4611686018427387904] is larger than any machine's memory");
    insta::assert_snapshot!(model(""), @"error: `model.layers` is empty; a model needs at least one layer");
    insta::assert_snapshot!(model("{ type = \"dense\", units = 2, name = \"input\" }"), @r#"error: `model.layers[0].name` is "input", which is already used; layer names should be unique"#);
    insta::assert_snapshot!(refused(&sandbox, &config(&format!("holdout = 0.01\n{DENSE}"))), @"error: `data.holdout` is 0.01, but should be a fraction of the 4 rows that leaves some to train on and some to hold out");
}

#[test]
fn a_closed_stdout_does_not_end_a_run() {
    let sandbox = Sandbox::new("pipe");
    let program = super::program().display();
    let script = format!("{program} train --epochs 2 --out run 2>&1 | head -1; {program} plan > /dev/full; {program} devices | true");
    let output = std::process::Command::new("sh").args(["-c", &script]).current_dir(&sandbox.folder).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    assert!(sandbox.path("run/report.json").exists(), "the run went on to its end");
}

#[test]
fn missing_and_malformed_configuration_files() {
    let sandbox = Sandbox::new("files");
    insta::assert_snapshot!(sandbox.fail(&["train", "missing.toml"]).1, @"error: cannot read missing.toml: No such file or directory (os error 2)");
    sandbox.write("broken.toml", "[train]\nbatch = = 3\n");
    insta::assert_snapshot!(sandbox.fail(&["train", "broken.toml"]).1, @"error: broken.toml, line 2: extra `=`, expected nothing");
    sandbox.write("empty.toml", "");
    insta::assert_snapshot!(sandbox.fail(&["train", "empty.toml"]).1, @r#"error: `data` is missing: a table that says what to train on, such as source = "digits""#);
    sandbox.write("x", "a file where a folder should be");
    insta::assert_snapshot!(sandbox.fail(&["train", "--epochs", "1", "--out", "x/run"]).1, @"error: cannot write to the run folder x/run: Not a directory (os error 20)");
}

#[test]
fn shape_mismatches_report_the_layer_and_both_shapes() {
    let sandbox = Sandbox::new("shapes");
    rows(&sandbox);
    insta::assert_snapshot!(refused(&sandbox, &config("[model]\nlayers = [{ type = \"conv2d\", filters = 2, size = 3 }]\n")), @"error: layer `conv2d`: expects images of shape [batch, height, width, channels], but received [B, 3]");
    insta::assert_snapshot!(refused(&sandbox, &config("[model]\nlayers = [{ type = \"dense\", units = 5 }]\n[train]\nloss = \"mse\"\n")), @"error: layer `loss`: predictions [B, 5] and labels [B, 2] have different numbers of elements");
    insta::assert_snapshot!(sandbox.fail(&["plan", "--set", "model.layers=[{type=\"conv2d\",filters=4,size=9}]", "--set", "model.zoo=x"]).1, @"error: `model.zoo` and `model.layers` are mutually exclusive");
    let branches = "[model]\nlayers = [{ type = \"dense\", units = 4, name = \"a\" }, { type = \"dense\", units = 5 }, \
                    { type = \"add\", inputs = [\"a\", \"b\"] }]\n";
    insta::assert_snapshot!(refused(&sandbox, &config(branches)), @r#"error: `model.layers[2].inputs` names "b", but the earlier named layers are input, a"#);
    let branches = "[model]\nlayers = [{ type = \"dense\", units = 4, name = \"a\" }, { type = \"dense\", units = 5, name = \"b\" }, \
                    { type = \"add\", inputs = [\"a\", \"b\"] }]\n[train]\nloss = \"mse\"\n";
    insta::assert_snapshot!(refused(&sandbox, &config(branches)), @"error: layer `add`: expects inputs of equal shape, but received [B, 4] and [B, 5]");
}

#[test]
fn malformed_data_files() {
    let sandbox = Sandbox::new("data");
    rows(&sandbox);
    sandbox.write("x.npy", npy("<f4", "(4, 3)", &[0; 40]));
    insta::assert_snapshot!(refused(&sandbox, &config(DENSE)), @"error: x.npy is truncated: its header promises 176 bytes and it has 168; copy or write it again");
    sandbox.write("x.npy", npy("<c8", "(4, 3)", &[0; 96]));
    insta::assert_snapshot!(refused(&sandbox, &config(DENSE)), @"error: x.npy cannot be read as .npy: its elements are `<c8`, which is not supported; convert it with array.astype to one of f2, f4, f8, i1, u1, i2, u2, i4, u4, i8, bool");
    sandbox.write("x.npy", "nothing of the kind");
    insta::assert_snapshot!(refused(&sandbox, &config(DENSE)), @"error: x.npy cannot be read as .npy: it does not begin with the .npy magic number; save it with numpy.save");
    sandbox.write("x.npy", npy("<f4", "(5, 3)", &[0; 60]));
    insta::assert_snapshot!(refused(&sandbox, &config(DENSE)), @"error: x.npy has 5 rows but y.npy has 4; columns of one data set need the same number of rows");
}

#[test]
fn labels_out_of_range_report_row_and_value() {
    let sandbox = Sandbox::new("labels");
    rows(&sandbox);
    let labels: Vec<u8> = [0i32, 1, 7, 0].iter().flat_map(|label| label.to_le_bytes()).collect();
    sandbox.write("y.npy", npy("<i4", "(4,)", &labels));
    sandbox.write("y.npy", npy("|u1", "(4,)", &[0, 1, 2, 9]));
    insta::assert_snapshot!(refused(&sandbox, &config("[model]\nlayers = [{ type = \"dense\", units = 3 }]\n")), @"error: row 3 of npy x.npy, y.npy has the label 9, but the model has 3 classes (0 to 2); correct the data or increase the number of outputs");
    let shuffled = "shuffle = true\n[model]\nlayers = [{ type = \"dense\", units = 3 }]\n[train]\nseed = 5\nbatch = 1\n";
    insta::assert_snapshot!(refused(&sandbox, &config(shuffled)), @"error: row 3 of npy x.npy, y.npy (row 0 of epoch 1) has the label 9, but the model has 3 classes (0 to 2); correct the data or increase the number of outputs");
    sandbox.write("y.npy", npy("<i4", "(4,)", &labels));
    insta::assert_snapshot!(refused(&sandbox, &config("[model]\nlayers = [{ type = \"dense\", units = 3 }]\n")), @"error: row 2 of npy x.npy, y.npy has the label 7, but the model has 3 classes (0 to 2); correct the data or increase the number of outputs");
}

#[test]
fn token_ids_and_sequence_lengths_out_of_range() {
    let sandbox = Sandbox::new("tokens");
    sandbox.write("t.txt", "to be or not to be, that is the question: ".repeat(9));
    let text = |layers: &str| format!("[data]\nsource = \"text\"\npath = \"t.txt\"\ncontext = 8\n[model]\nlayers = [{layers}]\n");
    let few = text("{ type = \"embedding\", vocabulary = 9, width = 4 }, { type = \"dense\", units = 99 }");
    insta::assert_snapshot!(refused(&sandbox, &few), @"error: row 0 of text t.txt (characters 0 to 378, 8 at a time, every 8) has the token ID 13 in its column `x`, but the embedding has a vocabulary of 9 (0 to 8); correct the data or increase the vocabulary");
    let long = "{ type = \"embedding\", vocabulary = 99, width = 4 }, { type = \"position_embedding\", context = 6 }, { type = \"dense\", units = 99 }";
    insta::assert_snapshot!(refused(&sandbox, &text(long)), @"error: layer `position_embedding`: the sequence length 8 exceeds the context of 6; shorten the sequences or raise `context`");
}

#[test]
fn a_schedule_shorter_than_training_is_refused_before_the_run() {
    let sandbox = Sandbox::new("schedule");
    let schedule = ["--set", "train.schedule={ type = \"cosine\", steps = 10 }", "--epochs", "2", "--quiet"];
    insta::assert_snapshot!(sandbox.fail(&[&["train", "--out", "run"], &schedule[..]].concat()).1, @"error: the cosine schedule ends after 10 steps, but training continues to step 90; give it more steps (`train.schedule.steps`; by default, the length of the run) or train for fewer epochs");
    assert!(!sandbox.path("run").exists(), "a run that cannot be leaves no folder behind");
}

#[test]
fn a_class_folder_without_images_is_reported() {
    let sandbox = Sandbox::new("classes");
    std::fs::create_dir_all(sandbox.path("pictures/ant")).unwrap();
    sandbox.write("run.toml", "[data]\nsource = \"image_folder\"\npath = \"pictures\"\n[model]\nzoo = \"lenet5\"\n");
    insta::assert_snapshot!(sandbox.fail(&["train", "run.toml", "--quiet"]).1, @"error: pictures is no folder of classes: its class pictures/ant holds no .jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff files; put some there or remove it");
}

#[test]
fn a_non_finite_loss_stops_the_run_and_reports_the_tensor() {
    let sandbox = Sandbox::new("finite");
    rows(&sandbox);
    let mut x: Vec<f32> = vec![1.0; 12];
    x[7] = f32::NAN;
    let bytes = |x: &[f32]| x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    sandbox.write("x.npy", npy("<f4", "(4, 3)", &bytes(&x)));
    insta::assert_snapshot!(refused(&sandbox, &config(DENSE)), @"error: the loss became not a number (NaN) in step 1 (epoch 1); the first non-finite tensor is the data, column `x`, row 2 of npy x.npy, y.npy. Try a smaller learning rate, or check the data");
    sandbox.write("x.npy", npy("<f4", "(4, 3)", &bytes(&[1e30; 12])));
    insta::assert_snapshot!(refused(&sandbox, &config(DENSE)), @"error: the loss became infinite in step 1 (epoch 1); the first non-finite tensor is the sum of layer `loss`. Try a smaller learning rate, or check the data");
    // A learning rate far too high: the weights overflow after a few steps.
    sandbox.write("x.npy", npy("<f4", "(4, 3)", &bytes(&[1.0; 12])));
    let runaway = "[model]\nlayers = [{ type = \"dense\", units = 2 }]\n[train]\nloss = \"mse\"\nepochs = 100\noptimizer = { type = \"sgd\", lr = 1e9 }\n";
    insta::assert_snapshot!(refused(&sandbox, &config(runaway)), @"error: the loss became infinite in step 4 (epoch 4); the first non-finite tensor is the sum of layer `loss`. Try a smaller learning rate, or check the data");
}

#[test]
fn an_infeasible_budget_reports_the_minimum() {
    let sandbox = Sandbox::new("budget");
    let (code, error) = sandbox.fail(&["train", "--host-memory", "1MiB", "--out", "out"]);
    assert_eq!(code, 3);
    // The sizes depend on the program's own size, so only the form is pinned.
    let form: String = error.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
    let form = form.replace("####", "#").replace("###", "#").replace("##", "#").replace("##", "#");
    insta::assert_snapshot!(form, @"error: this run does not fit into #.# MiB of host memory; the minimum budget is #.# MiB (# bytes), with micro-batches of #: process #.# MiB, graphs #.# MiB, pipeline #.# MiB, workspace # KiB");
    assert!(!sandbox.path("out").exists(), "a run that cannot be leaves nothing behind");
}

#[test]
fn errors_are_json_documents_with_json() {
    let sandbox = Sandbox::new("json-error");
    for arguments in
        [&["plan", "missing.toml", "--json"][..], &["plan", "--zoo", "resnet19", "--json"], &["data", "bench", "no.toml", "--json"]]
    {
        let output = sandbox.run(arguments);
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let error = document["error"].as_str().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), format!("error: {error}\n"), "{arguments:?}");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    }
}
