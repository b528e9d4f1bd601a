#!/usr/bin/env python3
"""Measures the resident memory of predictions with large model files, and checks ONNX files above 2 GiB.

    tools/model_memory.py target/release/plimsoll              files of 50 and 512 MB in every format
    tools/model_memory.py target/release/plimsoll above-2gib   weights of 2.5 GB: exported with external data, read back

Uses the Python environments of tools/models_check.py. Prints a line per file: its weights, the peak of the resident memory of
`plimsoll predict` (`ru_maxrss`), and the difference. The exit status is 1 if that difference grows with the file by more than 8 MiB, or
outputs differ.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).parent))
import models_check

MIB = 1 << 20
# Written by Keras: two fully connected layers of this many units.
WRITE = """
import sys, keras, numpy as np
units, folder = int(sys.argv[1]), sys.argv[2]
keras.utils.set_random_seed(1)
layers = [keras.Input((units,)), keras.layers.Dense(units, name="first"), keras.layers.Dense(units, name="second")]
model = keras.Sequential(layers)
model.save(folder + "/model.keras")
model.save(folder + "/model.h5")
x = np.random.default_rng(1).normal(size=(2, units)).astype(np.float32)
np.save(folder + "/x.npy", x)
np.save(folder + "/wanted.npy", model(x))
"""
EXTERNAL = """
import sys, onnx
model = onnx.load(sys.argv[1])
onnx.save(model, sys.argv[2], save_as_external_data=True, location="external.data", size_threshold=1024)
"""
# Three layers whose weights are 2.5 GB, as a run folder.
LARGE = """
import json, struct, sys, numpy as np
units, folder = int(sys.argv[1]), sys.argv[2]
draw = np.random.default_rng(1)
names = [(f"{layer}/{part}", [units, units] if part == "kernel" else [units]) for layer in ("first", "second", "third") for part in ("kernel", "bias")]
header, end = {}, 0
for name, shape in names:
    start, end = end, end + 4 * int(np.prod(shape))
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
header = json.dumps(header).encode()
x = y = draw.normal(size=(2, units)).astype(np.float32)
with open(folder + "/weights.safetensors", "wb") as out:
    out.write(struct.pack("<Q", len(header)) + header)
    for name, shape in names:
        weight = draw.standard_normal(shape, dtype=np.float32) / np.float32(units ** 0.5)
        out.write(weight.tobytes())
        y = y @ weight if len(shape) == 2 else y + weight
np.save(folder + "/x.npy", x)
np.save(folder + "/wanted.npy", y)
"""


def config(folder, units, names):
    """A run folder whose rows are the sample."""
    dense = ", ".join(f'{{ name = "{name}", type = "dense", units = {units} }}' for name in names)
    data = '[data]\nsource = "npy"\nx = "x.npy"\ny = "wanted.npy"\n'
    (folder / "config.toml").write_text(f'[model]\nlayers = [{dense}]\n{data}[train]\nbatch = 2\nloss = "mse"\n')


def predict(program, path, folder):
    """The greatest difference of the outputs, and the peak of the resident memory."""
    import numpy as np

    out = folder / "y.npy"
    child = subprocess.Popen([program, "predict", path, "--input", folder / "x.npy", "--out", out], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"plimsoll predict {path} failed")
    wanted = np.load(folder / "wanted.npy")
    return float(np.abs(np.load(out).reshape(wanted.shape) - wanted).max() / np.abs(wanted).max()), usage.ru_maxrss * 1024


def report(name, weights, difference, resident):
    beyond = resident - weights
    line = f"{name:28} weights {weights / MIB:8.1f} MiB   resident {resident / MIB:8.1f} MiB   beyond {beyond / MIB:6.1f} MiB"
    print(f"{line}   difference {difference:.0e}", flush=True)
    return beyond


def sizes(program, folder):
    keras, onnx = models_check.environment("keras"), models_check.environment("onnx")
    beyond, wrong = {}, False
    for units in (2500, 8000):
        work = folder / str(units)
        work.mkdir()
        quiet = {"env": {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, "stderr": subprocess.DEVNULL, "check": True}
        subprocess.run([keras, "-c", WRITE, str(units), work], **quiet)
        models_check.run(program, "convert", work / "model.keras", work / "model.onnx", "--rows", 0)
        subprocess.run([onnx, "-c", EXTERNAL, work / "model.onnx", work / "external.onnx"], check=True)
        run = work / "run"
        run.mkdir()
        models_check.run(program, "convert", work / "model.keras", run / "weights.safetensors", "--rows", 0)
        config(run, units, ["first", "second"])
        [shutil.copy(work / name, run) for name in ("x.npy", "wanted.npy")]
        weights = 4 * 2 * (units * units + units)
        for name in ("model.keras", "model.h5", "model.onnx", "external.onnx", "run"):
            difference, resident = predict(program, work / name, work)
            title = {"run": "weights.safetensors"}.get(name, name)
            beyond[title, units] = report(f"{title} ({units} units)", weights, difference, resident)
            wrong |= difference > 1e-4
        shutil.rmtree(work)
    grows = [title for title, units in beyond if units == 8000 and beyond[title, 8000] - beyond[title, 2500] > 8 * MIB]
    if grows:
        print("grows with the file:", ", ".join(grows))
    return wrong or bool(grows)


def above_2gib(program, folder):
    units = 14500
    subprocess.run([models_check.environment("onnx"), "-c", LARGE, str(units), folder], check=True)
    config(folder, units, ["first", "second", "third"])
    weights = 4 * 3 * (units * units + units)
    difference, resident = predict(program, folder, folder)
    report("run folder", weights, difference, resident)
    child = subprocess.Popen([program, "export", folder, "--to", folder / "model.onnx", "--rows", "0"])
    _, status, usage = os.wait4(child.pid, 0)
    print(f"export: resident {usage.ru_maxrss / 1024:.1f} MiB; {sorted(f'{path.name} {path.stat().st_size:,}' for path in folder.glob('model.*'))}")
    (folder / "weights.safetensors").unlink()
    difference, resident = predict(program, folder / "model.onnx", folder)
    report("model.onnx (external)", weights, difference, resident)
    return status != 0 or difference > 1e-4


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    program = Path(sys.argv[1]).resolve()
    # The environment of ONNX has NumPy, which this script needs too.
    python = models_check.environment("onnx")
    if Path(sys.executable) != Path(python):
        sys.exit(subprocess.run([python, __file__, *sys.argv[1:]]).returncode)
    with tempfile.TemporaryDirectory() as folder:
        check = above_2gib if "above-2gib" in sys.argv[2:] else sizes
        sys.exit(bool(check(program, Path(folder))))


if __name__ == "__main__":
    main()
