#!/usr/bin/env python3
"""Trains on tables that ship inside PyPI packages, from the files as they are, with configurations of under 15 lines.

    python rivals/real_tables.py target/release/plimsoll     # needs scikit-learn, statsmodels, vega_datasets
"""
import importlib.util, json, os, subprocess, sys, tempfile

def package(name):
    return os.path.dirname(importlib.util.find_spec(name).origin)

HEAD = '{ type = "dense", units = 32, activation = "relu" }, { type = "dense", units = %d }'

def classes(count, *keys):
    return list(keys), HEAD % count, 'loss = "softmax_cross_entropy"'

def regression(*keys):
    return ['standardize = true', *keys], HEAD % 1, 'loss = "mse"'

# file, target, (keys of [data], layers, loss)
TABLES = [
    ("sklearn/datasets/data/iris.csv", "virginica", classes(3)),
    ("sklearn/datasets/data/digits.csv.gz", "column_64", classes(10, "header = false")),
    ("statsmodels/datasets/fair/fair.csv", "affairs", regression()),
    ("statsmodels/datasets/anes96/anes96.csv", "'vote'", classes(2, 'standardize = "features"')),
    ("statsmodels/datasets/ccard/ccard.csv", "AVGEXP", regression()),
    ("statsmodels/datasets/randhie/randhie.csv", "mdvis", regression('types = { mdvis = "float" }')),
    ("statsmodels/datasets/modechoice/modechoice.csv", "choice", classes(2, 'standardize = "features"')),
    ("statsmodels/datasets/spector/spector.csv", "'GRADE'", classes(2, 'delimiter = " "', 'standardize = "features"')),
    ("statsmodels/datasets/statecrime/statecrime.csv", "murder", regression()),
    ("vega_datasets/_data/seattle-weather.csv", "weather", classes(5, 'standardize = "features"')),
    ("vega_datasets/_data/la-riots.csv", "type", classes(6, 'standardize = "features"', 'missing = "mean"')),
    ("vega_datasets/_data/iowa-electricity.csv", "net_generation", regression('types = { net_generation = "float" }')),
]

def main():
    plimsoll = os.path.abspath(sys.argv[1])
    print("| table | rows | columns | configuration | first loss | last loss | time |\n|---|---|---|---|---|---|---|")
    for file, target, (keys, layers, loss) in TABLES:
        name, rest = file.split("/", 1)
        path = os.path.join(package(name), rest)
        lines = ["[data]", 'source = "csv"', f'path = "{path}"', f'target = "{target}"', *keys, "holdout = 0.2", "shuffle = { seed = 7 }",
                 "[model]", f"layers = [{layers}]", "[train]", "batch = 16", "epochs = 5", loss]
        assert len(lines) < 15
        with tempfile.TemporaryDirectory() as folder:
            config = os.path.join(folder, "run.toml")
            open(config, "w").write("\n".join(lines))
            done = subprocess.run([plimsoll, "train", config, "--out", os.path.join(folder, "run")], capture_output=True, text=True)
            if done.returncode:
                print(f"| {file} | failed: {done.stderr.strip().splitlines()[-1]} |")
                continue
            report = json.load(open(os.path.join(folder, "run", "report.json")))
            inspected = json.loads(subprocess.run([plimsoll, "data", "inspect", config, "--json"], capture_output=True, text=True).stdout)
            epochs = report.get("history", report.get("epochs", []))
            first, last = epochs[0], epochs[-1]
            loss_of = lambda epoch: epoch.get("training", epoch).get("loss", float("nan"))
            print(f"| {file} | {inspected['rows']} | {len(inspected['used'])} | {len(lines)} lines | {loss_of(first):.3f} | {loss_of(last):.3f} | |")

main()
