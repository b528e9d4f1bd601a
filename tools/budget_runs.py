#!/usr/bin/env python3
"""Trains random networks, each within a hard memory limit of the operating system that equals its budget.

    cargo build --release
    tools/budget_runs.py --runs 2000 --seed 1 --out target/budget_runs.jsonl

Every run draws a model, data, permissions and a budget from the stated minimum up. It must not be killed, must not
exceed its plan, and must not be refused at its minimum; one byte less must be refused with the same minimum. Results
are appended to the file, one JSON object per run; the same call continues where it stopped. Needs the right to create
control groups (version 1 or 2).
"""
import argparse, collections, functools, json, multiprocessing, os, random, re, shutil, statistics, subprocess, sys, tempfile, time

MIB = 2**20
RUN_SECONDS = 2
PERMISSIONS = ["recompute", "split", "microbatch", "offload"]


def network(draw):
    """A model with the shape of its rows and its loss: a few layers, small enough for a run of two seconds."""
    kind = draw.choice(["dense", "dense", "conv", "conv", "norm", "recurrent", "deep", "attention"])
    if kind in ("dense", "deep"):
        width = draw.choice([8, 32, 100, 256, 1024] if kind == "dense" else [8, 16])
        depth = draw.randint(1, 5) if kind == "dense" else draw.randint(20, 200)
        act = draw.choice(["relu", "tanh", "gelu"])
        layers = [f'{{ type = "dense", units = {width}, activation = "{act}" }}'] * depth
        if draw.random() < 0.3:
            layers.append('{ type = "dropout", rate = 0.2 }')
        shape = [draw.choice([4, 16, 100, 784])]
    elif kind in ("conv", "norm"):
        side, filters = draw.choice([8, 16, 32]), draw.choice([4, 8, 16])
        layers = []
        for _ in range(draw.randint(1, 6)):
            layers.append(f'{{ type = "conv2d", filters = {filters}, size = 3, padding = "same" }}')
            if kind == "norm":
                layers.append('{ type = "batch_norm" }')
            layers.append('{ type = "relu" }')
        layers.append(draw.choice(['{ type = "global_average_pool" }', '{ type = "flatten" }']))
        shape = [side, side, draw.choice([1, 3])]
    elif kind == "recurrent":
        cell = draw.choice(["lstm", "gru"])
        layers = [f'{{ type = "{cell}", units = {draw.choice([8, 32, 64])} }}']
        shape = [draw.choice([8, 24, 64]), draw.choice([2, 7])]
    else:
        width = draw.choice([16, 32])
        layers = ['{ type = "layer_norm" }', f'{{ type = "dense", units = {width}, activation = "gelu" }}'] * draw.randint(1, 4)
        layers.append('{ type = "flatten" }')
        shape = [draw.choice([8, 32]), width]
    classes = draw.choice([2, 10, 100, 1000])
    layers.append(f'{{ type = "dense", units = {classes} }}')
    return kind, layers, shape, classes


def configuration(draw):
    kind, layers, shape, classes = network(draw)
    batch = draw.choice([1, 4, 8, 16, 32, 64, 96])
    rows = batch * draw.randint(1, 4) + draw.choice([0, 0, 1, 3])
    metrics = draw.choice([[], ["accuracy"], ["accuracy", "f1"], ["accuracy", "precision", "recall", "f1", "iou"]])
    optimizer = draw.choice(["sgd", "adam", "adamw", "rmsprop"])
    lines = ["[data]", 'source = "random"', f"rows = {rows}", f"x = {shape}", f"classes = {classes}", f"batch = {batch}"]
    if rows >= 8 and draw.random() < 0.4:
        lines.append("holdout = 0.25")
    if draw.random() < 0.3:
        lines.append("shuffle = { seed = 3 }")
    lines += ["[model]", "layers = [" + ", ".join(layers) + "]", "[train]", f"epochs = {draw.choice([1, 1, 2, 5, 20])}"]
    lines += ['loss = "softmax_cross_entropy"', f"metrics = {json.dumps(metrics)}", f'optimizer = {{ type = "{optimizer}" }}']
    return kind, "\n".join(lines) + "\n"


class Group:
    """A control group with a memory limit."""

    def __init__(self, limit):
        roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
        for root, file in roots:
            path = os.path.join(root, f"plimsoll-budget-{os.getpid()}")
            try:
                os.makedirs(path, exist_ok=True)
                with open(os.path.join(path, file), "w") as f:
                    f.write(str(limit))
                self.path = path
                return
            except OSError:
                continue
        sys.exit("no control group can be created here: run as root, in cgroup version 1 or 2")

    def run(self, command):
        enter = f'echo $$ > {self.path}/cgroup.procs && exec "$0" "$@"'
        return subprocess.run(["sh", "-c", enter, *command], capture_output=True, text=True)

    def close(self):
        try:
            os.rmdir(self.path)
        except OSError:
            pass


def one_run(program, seed, index):
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = run_within_limit(program, seed, index, folder)
    return {**result, "seed": seed, "seconds": round(time.monotonic() - start, 2)}


def run_within_limit(program, seed, index, folder):
    draw = random.Random(f"{seed}/{index}")
    kind, text = configuration(draw)
    config, out = os.path.join(folder, "run.toml"), os.path.join(folder, "out")
    with open(config, "w") as f:
        f.write(text)
    shutil.rmtree(out, ignore_errors=True)
    options = ["--no-calibrate", "--json", "--threads", str(draw.choice([1, 1, 1, 2]))]
    if draw.random() < 0.3:
        allow = [name for name in PERMISSIONS if draw.random() < 0.5]
        options += ["--allow", ",".join(allow) or "none"]
    result = {"run": index, "kind": kind, "outcome": "ok"}

    def fail(outcome, what):
        result.update(outcome=outcome, what=what[-400:], config=text, options=options)
        return result

    def plan(budget):
        done = subprocess.run([program, "plan", config, *options, "--host-memory", str(budget)], capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    status, document, error = plan(MIB)
    if status != 3:
        return fail("not refused", f"exit {status} for a budget of 1 MiB: {error}")
    minimum = document["min_bytes"]
    if draw.random() < 0.25:
        status, document, error = plan(minimum - 1)
        if status != 3 or document.get("min_bytes") != minimum:
            return fail("minimum minus one", f"exit {status}, minimum {document.get('min_bytes')} instead of {minimum}")
        result["less_refused"] = True
    budget = minimum if draw.random() < 0.5 else int(minimum * draw.uniform(1, draw.choice([1.05, 1.5, 3])))
    status, document, error = plan(budget)
    if status != 0:
        return fail("refused", f"the plan of {budget} bytes, minimum {minimum}: {error}")
    # At the minimum a step can take a hundred times as long.
    steps = -(-int(re.search(r"rows = (\d+)", text)[1]) // document["batch"])
    epochs = int(re.search(r"epochs = (\d+)", text)[1])
    if epochs * steps * document["predicted_step_s"] > RUN_SECONDS:
        options += ["--epochs", "1"]
    group = Group(budget)
    try:
        done = group.run([program, "train", config, *options, "--quiet", "--out", out, "--host-memory", str(budget)])
    finally:
        group.close()
    if done.returncode < 0 or done.returncode == 137:
        return fail("killed", f"exit {done.returncode} within {budget} bytes, minimum {minimum}: {done.stderr}")
    if done.returncode == 3:
        return fail("refused", f"within {budget} bytes, minimum {minimum}: {done.stderr}")
    if done.returncode != 0:
        return fail("failed", f"exit {done.returncode} within {budget} bytes: {done.stderr}")
    report = json.loads(done.stdout)
    planned, measured = report["planned_bytes"], report["measured_peak_rss_bytes"]
    result.update(minimum=minimum, budget=budget, planned=planned, measured=measured, at_minimum=budget == minimum)
    if measured > planned or planned > budget:
        return fail("over its plan", f"{measured} bytes measured, {planned} planned, budget {budget}")
    return result


def summary(results):
    count = collections.Counter(result["outcome"] for result in results)
    ran = [result for result in results if "planned" in result]
    print(", ".join(f"{count[name]} {name}" for name in sorted(count)))
    print(f"{sum(r['at_minimum'] for r in ran)} at exactly the minimum; one byte less refused {sum('less_refused' in r for r in results)} times")
    if ran:
        ratios = sorted(result["planned"] / result["measured"] for result in ran)
        within = sum(r["planned"] <= 1.25 * r["measured"] or r["planned"] <= r["measured"] + 4 * MIB for r in ran)
        print(f"planned / measured: median {statistics.median(ratios):.3f}, 90th percentile {ratios[len(ratios) * 9 // 10]:.3f}, worst {ratios[-1]:.3f}; "
              f"within 1.25 or 4 MiB: {within} of {len(ran)}")
        slack = sorted(result["planned"] - result["measured"] for result in ran)
        print(f"planned - measured: smallest {slack[0] / MIB:.2f} MiB, median {statistics.median(slack) / MIB:.2f} MiB, largest {slack[-1] / MIB:.2f} MiB")
    for result in [result for result in results if result["outcome"] != "ok"][:10]:
        print(f"run {result['run']} ({result['kind']}): {result['outcome']}: {result['what']}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--plimsoll", default="target/release/plimsoll", help="the command to test")
    arguments.add_argument("--runs", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--jobs", type=int, default=2, help="runs at a time")
    arguments.add_argument("--out", default="target/budget_runs.jsonl", help="results; an existing file is continued")
    args = arguments.parse_args()
    done = []
    if os.path.exists(args.out):
        with open(args.out) as f:
            done = [json.loads(line) for line in f]
        if done and done[0].get("seed", args.seed) != args.seed:
            sys.exit(f"{args.out} holds runs of seed {done[0]['seed']}; name another file with --out")
    known = {result["run"] for result in done}
    left = [index for index in range(args.runs) if index not in known]
    one = functools.partial(one_run, os.path.abspath(args.plimsoll), args.seed)
    with multiprocessing.Pool(args.jobs) as pool, open(args.out, "a") as results:
        for result in pool.imap_unordered(one, left):
            done.append(result)
            results.write(json.dumps(result) + "\n")
            results.flush()
            if sys.stderr.isatty():
                print(f"\r{len(done)} of {args.runs}", end="", file=sys.stderr)
    summary(done)
    sys.exit(any(result["outcome"] != "ok" for result in done))


if __name__ == "__main__":
    main()
