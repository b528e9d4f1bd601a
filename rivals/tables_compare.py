#!/usr/bin/env python3
"""A mixed table and text classification, side by side with Keras: the same files, preprocessing, network and epochs.

    python rivals/tables_compare.py target/release/plimsoll tinyshakespeare.txt [SEEDS]     # needs keras, tensorflow, pandas

Prints validation accuracy (the mean over seeds of the weights and of shuffling) and peak resident memory of both.
"""
import csv, json, os, random, resource, subprocess, sys, tempfile

CATEGORIES = {"job": ["cook", "clerk", "guard", "pilot", "nurse"], "city": ["Bern", "Oslo", "Rome", "Kyiv"]}

def write_mixed(folder, rows=20000):
    draw = random.Random(7)
    for name, count in [("train", rows), ("valid", rows // 5)]:
        with open(os.path.join(folder, f"mixed-{name}.csv"), "w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["age", "hours", "job", "city", "rich"])
            for _ in range(count):
                age, hours = draw.uniform(18, 70), draw.gauss(38, 9)
                job, city = draw.choice(CATEGORIES["job"]), draw.choice(CATEGORIES["city"])
                score = (age - 44) / 12 + (hours - 38) / 8 + {"pilot": 1.5, "cook": -1}.get(job, 0) + {"Oslo": 0.8}.get(city, 0)
                label = "yes" if score + draw.gauss(0, 0.7) > 0 else "no"
                missing = lambda text: "" if draw.random() < 0.05 else text
                out.writerow([missing(f"{age:.1f}"), missing(f"{hours:.1f}"), missing(job), missing(city), label])

def write_text(folder, text, speakers=8):
    lines, speaker = [], None
    for line in open(text, encoding="utf-8"):
        line = line.strip()
        if line.endswith(":") and len(line) < 30:
            speaker = line[:-1]
        elif line and speaker:
            lines.append((speaker, line))
    counts = {}
    for speaker, _ in lines:
        counts[speaker] = counts.get(speaker, 0) + 1
    kept = set(sorted(counts, key=lambda name: (-counts[name], name))[:speakers])
    lines = [line for line in lines if line[0] in kept]
    random.Random(7).shuffle(lines)
    cut = len(lines) * 4 // 5
    for name, part in [("train", lines[:cut]), ("valid", lines[cut:])]:
        with open(os.path.join(folder, f"text-{name}.csv"), "w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["speaker", "line"])
            out.writerows(part)
    return speakers

CONFIG = {
    "mixed": """[data]
source = "csv"
path = "mixed-train.csv"
target = "rich"
missing = "mean"
standardize = "features"
shuffle = { seed = 7 }
validation = { path = "mixed-valid.csv" }
[model]
layers = [{ type = "dense", units = 32, activation = "relu" }, { type = "dense", units = 2 }]
[train]
batch = 64
epochs = 5
optimizer = { type = "adam", lr = 1e-3 }
""",
    "text": """[data]
source = "csv"
path = "text-train.csv"
target = "speaker"
shuffle = { seed = 7 }
validation = { path = "text-valid.csv" }
columns = { line = { type = "text", max_tokens = 4000, length = 16 } }
[model]
layers = [{ type = "embedding", vocabulary = 4000, width = 32, mask_zero = true }, { type = "global_average_pool" },
    { type = "dense", units = 8 }]
[train]
batch = 64
epochs = 8
optimizer = { type = "adam", lr = 3e-3 }
""",
}

def keras_run(folder, task, seed):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import keras, numpy as np, pandas as pd
    from keras import layers as L
    keras.utils.set_random_seed(seed)
    train, valid = (pd.read_csv(os.path.join(folder, f"{task}-{name}.csv"), keep_default_na=task == "mixed") for name in ["train", "valid"])
    if task == "mixed":
        def features(frame):
            parts = []
            for name in ["age", "hours"]:
                mean, std = train[name].mean(), train[name].std(ddof=0)
                parts.append(((frame[name].fillna(mean) - mean) / std).to_numpy().reshape(-1, 1))
            for name in ["job", "city"]:
                most = train[name].mode()[0]
                lookup = L.StringLookup(output_mode="one_hot")
                lookup.adapt(train[name].fillna(most).to_numpy())
                parts.append(np.asarray(lookup(frame[name].fillna(most).to_numpy().reshape(-1, 1))))
            return np.concatenate(parts, axis=1).astype("float32")
        label, model, epochs, rate = "rich", [L.Dense(32, activation="relu"), L.Dense(2)], 5, 1e-3
        x, vx = features(train), features(valid)
    else:
        vectorize = L.TextVectorization(max_tokens=4000, output_sequence_length=16)
        vectorize.adapt(train["line"].to_numpy())
        x, vx = (np.asarray(vectorize(frame["line"].to_numpy())) for frame in [train, valid])
        label, epochs, rate = "speaker", 8, 3e-3
        model = [L.Embedding(4000, 32, mask_zero=True), L.GlobalAveragePooling1D(), L.Dense(8)]
    names = sorted(train[label].unique())
    y, vy = (frame[label].map({name: at for at, name in enumerate(names)}).to_numpy() for frame in [train, valid])
    model = keras.Sequential(model)
    model.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    history = model.fit(x, y, batch_size=64, epochs=epochs, validation_data=(vx, vy), verbose=0)
    print(json.dumps({"accuracy": history.history["val_accuracy"][-1], "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))

def accuracy_of(run):
    """The last validation accuracy of a run folder."""
    return [json.loads(line) for line in open(os.path.join(run, "log.jsonl"))][-1]["val_accuracy"]

def main():
    if sys.argv[1] == "--keras":
        return keras_run(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    plimsoll, text, seeds = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 1
    with tempfile.TemporaryDirectory() as folder:
        write_mixed(folder)
        write_text(folder, text)
        print("| task | Plimsoll accuracy | Keras accuracy | Plimsoll resident | Keras resident |\n|---|---|---|---|---|")
        wrapped = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=sys.stderr); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
        for task in ["mixed", "text"]:
            ours, theirs = [], []
            for seed in range(7, 7 + seeds):
                done = subprocess.run([sys.executable, __file__, "--keras", folder, task, str(seed)], capture_output=True, text=True)
                keras = json.loads(done.stdout.splitlines()[-1])
                theirs.append((keras["accuracy"], keras["resident"]))
                config = os.path.join(folder, f"{task}.toml")
                open(config, "w").write(CONFIG[task].replace("seed = 7", f"seed = {seed}") + f"seed = {seed}\n")
                run = os.path.join(folder, f"{task}-{seed}")
                done = subprocess.run([sys.executable, "-c", wrapped, plimsoll, "train", config, "--out", run], capture_output=True, text=True)
                if done.returncode:
                    sys.exit(done.stderr)
                ours.append((accuracy_of(run), int(done.stdout.split()[-1])))
            accuracy = lambda runs: sum(run[0] for run in runs) / len(runs)
            resident = lambda runs: max(run[1] for run in runs) / 1024
            print(f"| {task} | {accuracy(ours):.4f} | {accuracy(theirs):.4f} | {resident(ours):.0f} MiB | {resident(theirs):.0f} MiB |", flush=True)

main()
