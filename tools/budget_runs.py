#!/usr/bin/env python3
"""Trains random networks, each within a hard memory limit of the operating system that equals its budget.

    cargo build --release
    tools/budget_runs.py --runs 2000 --seed 1 --out target/budget_runs.jsonl

Every run draws a model, data (random numbers, arrays, tables, folders of images, with stages), permissions and a budget
from the stated minimum up. Some are resumed, or predict, within the same limit. A run must not be killed, must not
exceed its plan, and must not be refused at its minimum; one byte less must be refused with the same minimum. Results
are appended to the file, one JSON object per run; the same call continues where it stopped. Needs the right to create
control groups (version 1 or 2).
"""
import argparse, array, collections, functools, json, multiprocessing, os, random, re, statistics, struct, subprocess, sys, tempfile, time, zlib

MIB = 2**20
EPOCH = 4096
MIXED = "mixed-images"
PERMISSIONS = ["recompute", "split", "microbatch", "offload"]


def network(draw):
    """A model with the shape of its rows: a few layers, small enough for a run of two seconds."""
    kind = draw.choice(["dense", "dense", "conv", "conv", "norm", "pooled", "recurrent", "deep", "attention"])
    if kind in ("dense", "deep"):
        width = draw.choice([8, 32, 100, 256, 1024, 2048] if kind == "dense" else [8, 16])
        depth = draw.randint(1, 5 if width < 2048 else 2) if kind == "dense" else draw.randint(20, 150)
        act = draw.choice(["relu", "tanh", "gelu"])
        layers = [f'{{ type = "dense", units = {width}, activation = "{act}" }}'] * depth
        if draw.random() < 0.3:
            layers.append('{ type = "dropout", rate = 0.2 }')
        shape = [draw.choice([4, 16, 100, 784])]
    elif kind in ("conv", "norm", "pooled"):
        side, filters = draw.choice([8, 16, 32, 64]), draw.choice([4, 8, 16])
        layers = []
        for number in range(draw.randint(1, 6)):
            layers.append(f'{{ type = "conv2d", filters = {filters}, size = 3, padding = "same" }}')
            if kind == "norm":
                layers.append('{ type = "batch_norm" }')
            layers.append('{ type = "relu" }')
            if kind == "pooled" and number < 2:
                layers.append('{ type = "max_pool2d", size = 2 }')
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
    return kind, layers, shape


def product(shape):
    return functools.reduce(lambda a, b: a * b, shape, 1)


def write_npy(path, descr, shape, values):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)}, }}".encode()
    head += b" " * (63 - (len(head) + 10) % 64) + b"\n"
    with open(path, "wb") as f:
        f.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head + values)


def write_png(path, width, height, channels, draw):
    """A picture of noise, so that it is not much smaller than its pixels, or of one colour."""
    noise = draw.random() < 0.5
    row = lambda: b"\0" + (draw.randbytes(width * channels) if noise else bytes([draw.randrange(256)]) * (width * channels))
    chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header))
        f.write(chunk(b"IDAT", zlib.compress(b"".join(row() for _ in range(height)), 1)) + chunk(b"IEND", b""))


def random_rows(draw, shape, rows, classes, folder):
    return ['source = "random"', f"rows = {rows}", f"x = {shape}", f"classes = {classes}"], []


def npy_rows(draw, shape, rows, classes, folder):
    kind, descr = draw.choice([("f", "<f4"), ("B", "|u1"), ("d", "<f8")])
    count = rows * product(shape)
    values = array.array(kind, draw.randbytes(count) if kind == "B" else (draw.random() for _ in range(count)))
    write_npy(os.path.join(folder, "x.npy"), descr, [rows, *shape], values.tobytes())
    labels = array.array("i", (draw.randrange(classes) for _ in range(rows)))
    write_npy(os.path.join(folder, "y.npy"), "<i4", [rows], labels.tobytes())
    ops = ['{ op = "scale", by = 0.004 }'] if kind == "B" else ['{ op = "cast" }'] if kind == "d" else []
    return ['source = "npy"', 'x = "x.npy"', 'y = "y.npy"'], ops


def csv_rows(draw, shape, rows, classes, folder):
    columns = [f"{draw.choice(['x', 'feature', 'a column with a longer name '])}{n}" for n in range(shape[0])]
    with open(os.path.join(folder, "table.csv"), "w") as f:
        f.write(",".join(columns) + ",label\n")
        for _ in range(rows):
            f.write(",".join(f"{draw.gauss(0, 1):.4f}" for _ in columns) + f",{draw.randrange(classes)}\n")
    lines = ['source = "csv"', 'path = "table.csv"', 'target = "label"']
    return lines + (['standardize = "features"'] if draw.random() < 0.3 else []), []


def image_rows(draw, shape, rows, classes, folder, sizes):
    """A folder of images, each class with one at least."""
    for number in range(rows):
        place = os.path.join(folder, "images", f"class-{number % classes}")
        os.makedirs(place, exist_ok=True)
        width, height = sizes()
        write_png(os.path.join(place, f"{number}.png"), width, height, shape[2], draw)
    ops = [f'{{ op = "decode", channels = {shape[2]} }}', f'{{ op = "resize", size = [{shape[0]}, {shape[1]}] }}', '{ op = "scale", by = 0.004 }']
    if draw.random() < 0.3:
        ops.insert(2, '{ op = "flip_left_right" }')
    return ['source = "image_folder"', 'path = "images"'], ops


def same_images(draw, *rows):
    width, height = draw.choice([(8, 8), (40, 30), (120, 90), (500, 400)])
    return image_rows(draw, *rows, lambda: (width, height))


def mixed_images(draw, *rows):
    """Images of many sizes, a few of them large: most need less memory than is planned for the largest."""
    side = draw.choice([8, 40, 120])
    small = lambda: (draw.randint(side // 2, side), draw.randint(side // 2, side))
    large = lambda: (draw.randint(300, 900), draw.randint(300, 900))
    return image_rows(draw, *rows, lambda: large() if draw.random() < 0.02 else small())


SOURCES = {"random": random_rows, "npy": npy_rows, "csv": csv_rows, "images": same_images, MIXED: mixed_images}


def pipeline(draw, shape, batch, rows, classes, folder):
    """The lines of [data]: a source with short keys, or with a list of stages."""
    sources = ["random", "npy", "npy"] + {1: ["csv", "csv"], 2: [], 3: ["images", "images", MIXED]}[len(shape)]
    source = draw.choice(sources)
    lines, ops = SOURCES[source](draw, shape, rows, classes, folder)
    # Standardized rows share statistics with those that would be held out.
    if rows >= 8 and draw.random() < 0.4 and not any("standardize" in line for line in lines):
        lines.append("holdout = 0.25")
    if draw.random() < 0.3:
        stages = list(ops)
        if draw.random() < 0.5:
            # A buffer holds two rows at least.
            row = 4 * product(shape) // 1024
            stages.insert(0, f'{{ op = "shuffle", seed = 3, buffer = "{max(draw.choice([64, 256, 2048]), 4 * row)}KiB" }}')
        if draw.random() < 0.3:
            # Keeps every row; the length of the epoch is unknown from here on.
            stages.insert(0, '{ op = "filter", column = "y", at_least = 0 }')
        # A cache holds rows that are the same in every epoch.
        if draw.random() < 0.3 and not any("flip" in op for op in ops):
            stages.append('{ op = "cache", in = "memory" }')
        stages.append(f'{{ op = "batch", rows = {batch} }}')
        return source, lines + ["stages = [" + ", ".join(stages) + "]"]
    if draw.random() < 0.3:
        lines.append("shuffle = { seed = 3 }")
    if ops:
        lines.append("map = [" + ", ".join(ops) + "]")
    if draw.random() < 0.2:
        lines.append(draw.choice(['cache = "memory"', 'cache = { file = "rows.plc" }']))
    if draw.random() < 0.2:
        lines.append(f"parallelism = {draw.choice([1, 2, 3])}")
    if draw.random() < 0.2:
        lines.append(f"prefetch = {draw.choice([1, 2, 8])}")
    return source, lines + [f"batch = {batch}"]


def configuration(draw, folder):
    kind, layers, shape = network(draw)
    batch = draw.choice([1, 4, 8, 16, 32, 64])
    rows = batch * draw.randint(1, 3) + draw.choice([0, 0, 1, 3])
    classes = draw.choice([2, 10, 100, 1000])
    source, data = pipeline(draw, shape, batch, rows, classes, folder)
    if source in ("images", MIXED):
        classes = min(classes, rows)
    layers.append(f'{{ type = "dense", units = {classes} }}')
    metrics = draw.choice([[], ["accuracy"], ["accuracy", "f1"], ["accuracy", "precision", "recall", "f1", "iou"]])
    optimizer = draw.choice(["sgd", "adam", "adamw", "rmsprop"])
    lines = ["[data]", *data, "[model]", "layers = [" + ", ".join(layers) + "]"]
    # At the minimum a step can take a hundred times as long: few of them, for runs of two seconds.
    lines += ["[train]", f"epochs = {draw.choice([1, 1, 2, 3])}"]
    lines += ['loss = "softmax_cross_entropy"', f"metrics = {json.dumps(metrics)}", f'optimizer = {{ type = "{optimizer}" }}']
    if draw.random() < 0.2:
        lines += ["[checkpoint]", f"every_steps = {draw.choice([1, 3])}", f"keep = {draw.choice([1, 2, 5])}"]
    return f"{kind} {source}", "\n".join(lines) + "\n"


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
        """The finished process, and its peak resident memory in bytes as the system reports it. `time` itself stays outside of the group."""
        enter = f'echo $$ > {self.path}/cgroup.procs && exec "$0" "$@"'
        with tempfile.NamedTemporaryFile("r") as peak:
            timed = ["/usr/bin/time", "--quiet", "-f", "%M", "-o", peak.name, "sh", "-c", enter]
            done = subprocess.run([*timed, *command], capture_output=True, text=True)
            return done, 1024 * int(peak.read().split()[-1])

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
    kind, text = configuration(draw, folder)
    config, out = os.path.join(folder, "run.toml"), os.path.join(folder, "out")
    with open(config, "w") as f:
        f.write(text)
    options = ["--no-calibrate", "--json", "--threads", str(draw.choice([1, 1, 1, 2]))]
    if draw.random() < 0.3:
        allow = [name for name in PERMISSIONS if draw.random() < 0.5]
        options += ["--allow", ",".join(allow) or "none"]
    epochs = int(re.search(r"epochs = (\d+)", text)[1])
    resumed = draw.random() < 0.15
    # The history of epochs is planned: a run that is to be continued states its length from the beginning.
    options += ["--epochs", str(epochs + resumed)]
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
    # One epoch less may fit in larger micro-batches, which the resumed run keeps: it has the history of one epoch more.
    budget += EPOCH if resumed else 0
    result.update(minimum=minimum, budget=budget, at_minimum=budget == minimum)

    def limited(what, arguments):
        """What went wrong, or nothing: a command within a hard limit of exactly the budget."""
        group = Group(budget)
        try:
            done, measured = group.run([program, *arguments, "--host-memory", str(budget)])
        finally:
            group.close()
        said = f"{what} within {budget} bytes, minimum {minimum}: exit {done.returncode}: {done.stderr}"
        if done.returncode != 0:
            return fail({137: "killed", -9: "killed", 3: "refused"}.get(done.returncode, "failed"), said)
        if what == "predict":
            return fail("over its plan", f"predict: {measured} bytes measured, budget {budget}") if measured > budget else None
        planned = json.loads(done.stdout)["planned_bytes"]
        if what == "train":
            with open(os.path.join(out, "plan.json")) as f:
                result.update(planned=planned, measured=measured, owners=json.load(f)["by_owner"])
        if measured > planned or planned > budget:
            return fail("over its plan", f"{what}: {measured} bytes measured, {planned} planned, budget {budget}")

    train = ["train", config, *options, "--quiet", "--out", out]
    train[train.index("--epochs") + 1] = str(epochs)
    wrong = limited("train", train)
    if not wrong and resumed:
        result["resumed"] = True
        train[train.index("--epochs") + 1] = str(epochs + 1)
        wrong = limited("resume", [*train, "--resume"])
    if not wrong and draw.random() < 0.15:
        result["predicted"] = True
        wrong = limited("predict", ["predict", out, "--out", os.path.join(folder, "predictions.csv")])
    return wrong or result


def summary(results):
    count = collections.Counter(result["outcome"] for result in results)
    ran = [result for result in results if "planned" in result]
    print(", ".join(f"{count[name]} {name}" for name in sorted(count)))
    print(f"{sum(r['at_minimum'] for r in ran)} at exactly the minimum; one byte less refused {sum('less_refused' in r for r in results)} times; "
          f"{sum('resumed' in r for r in ran)} resumed and {sum('predicted' in r for r in ran)} predicted within the same limit")
    kinds = collections.Counter(word for result in results for word in result["kind"].split())
    print(", ".join(f"{kinds[name]} {name}" for name in sorted(kinds)))
    if ran:
        # Over-statement is about items of the planned size.
        ran = [result for result in ran if MIXED not in result["kind"]]
        ratios = sorted(result["planned"] / result["measured"] for result in ran)
        for name, part in [("below 16 MiB", [r for r in ran if r["measured"] < 16 * MIB]), ("from 16 MiB", [r for r in ran if r["measured"] >= 16 * MIB])]:
            if part:
                print(f"planned / measured, {len(part)} runs {name}: median {statistics.median(r['planned'] / r['measured'] for r in part):.3f}")
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
