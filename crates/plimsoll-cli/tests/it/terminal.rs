//! Commands for people: lists of runs, a run from another terminal, completions, manual pages and the schema.

use crate::Sandbox;
use serde_json::json;

#[test]
fn runs_are_listed_with_their_best_scores() {
    let sandbox = Sandbox::new("runs");
    insta::assert_snapshot!(sandbox.succeed(&["runs"]), @"there are no runs in runs");
    sandbox.succeed(&["train", "--epochs", "3", "--quiet"]);
    sandbox.succeed(&["train", "--epochs", "1", "--quiet"]);
    let listed = sandbox.json(&["runs", "--json"]);
    let states: Vec<_> = listed.as_array().unwrap().iter().map(|run| (&run["run"], &run["state"], &run["epochs"])).collect();
    assert_eq!(states, [(&json!("runs/digits-1"), &json!("done"), &json!(3)), (&json!("runs/digits-2"), &json!("done"), &json!(1))]);
    let log = std::fs::read_to_string(sandbox.path("runs/digits-1/log.jsonl")).unwrap();
    let accuracies = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["val_accuracy"].as_f64().unwrap());
    let best = &listed[0]["best"];
    assert_eq!((&best["score"], best["value"].as_f64()), (&json!("val_accuracy"), Some(accuracies.fold(0.0, f64::max))));
    let table = sandbox.succeed(&["runs"]);
    assert!(table.starts_with("run       state  model       epochs  best"), "{table}");
    assert_eq!(table.lines().count(), 3);
    let refused = |folder: &str| sandbox.fail(&["runs", folder]).1;
    insta::assert_snapshot!(refused("nothing"), @"error: there is no folder nothing; name the folder that has the run folders in it");
    insta::assert_snapshot!(refused("runs/digits-1"), @"error: runs/digits-1 is a run folder itself; name the folder it is in, or use `plimsoll watch runs/digits-1`");
}

#[test]
fn a_run_is_shown_with_its_curves_and_without_colours() {
    let sandbox = Sandbox::new("watch");
    sandbox.succeed(&["train", "--epochs", "3", "--out", "run", "--quiet"]);
    let screen = sandbox.succeed(&["watch", "run", "--once"]);
    assert!(screen.starts_with("run · digits-cnn · done\n\n  epochs     3\n"), "{screen}");
    for part in ["  memory     ", "planned, budget", "  best       val_accuracy", "loss · val_loss", "accuracy · val_accuracy"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    assert!(!screen.contains('\x1b'), "no escapes where the output is not a terminal");
    let (_, error) = sandbox.fail(&["watch", "nothing"]);
    insta::assert_snapshot!(error, @"error: nothing is no run folder: it has no plan.json");
}

#[test]
fn completions_and_manual_pages_have_every_command() {
    let sandbox = Sandbox::new("completions");
    let help = sandbox.succeed(&["--help"]);
    let indented = help.lines().filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    let commands: Vec<&str> = indented.filter_map(|line| line.split_whitespace().next()).take_while(|word| *word != "help").collect();
    assert!(commands.contains(&"report") && commands.contains(&"train"), "{commands:?}");
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.succeed(&["completions", shell]);
        commands.iter().for_each(|command| assert!(script.contains(command), "{shell} {command}"));
        assert!(script.contains("host-memory"));
    }
    assert!(sandbox.succeed(&["man"]).contains(".TH plimsoll 1"));
    sandbox.succeed(&["man", "--out", "man1"]);
    for command in commands {
        assert!(sandbox.path(&format!("man1/plimsoll-{command}.1")).exists(), "{command}");
    }
}

#[test]
fn the_schema_is_a_json_document() {
    let schema = Sandbox::new("schema").json(&["schema"]);
    assert_eq!(schema["properties"]["log"]["properties"]["tensorboard"]["type"], "boolean");
    assert_eq!(schema["properties"]["train"]["additionalProperties"], false);
}

#[test]
fn names_of_keras_and_pytorch_are_understood() {
    let sandbox = Sandbox::new("synonyms");
    let said = |assignment: &str| sandbox.fail(&["plan", "--set", assignment]).1;
    assert!(said("train.loss=sparse_categorical_crossentropy").ends_with("did you mean \"softmax_cross_entropy\"?"));
    assert!(said("train.loss=crossentropy").ends_with("did you mean \"softmax_cross_entropy\"?"));
    assert!(said("train.optimizer={ type = \"adam\", learning_rate = 0.1 }").ends_with("did you mean `train.optimizer.lr`?"));
    assert!(said("train.learning_rate=0.1").ends_with("did you mean `train.optimizer.lr`?"));
    assert!(said("train.metrics=[\"acc\"]").ends_with("did you mean \"accuracy\"?"));
    assert!(said("train.batch_size=8").ends_with("did you mean `train.batch`?"));
}
