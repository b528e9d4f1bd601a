#!/usr/bin/env python3
"""Compares TFLite files with LiteRT's interpreter: single precision, half precision, weights in int8, everything in int8.

    tools/tflite_check.py target/release/plimsoll                       all networks (half an hour on two cores)
    tools/tflite_check.py target/release/plimsoll mobilenet-v2 lstm     some networks
    tools/tflite_check.py target/release/plimsoll --numbers f32 unet    one type of numbers

Networks of the zoo with random weights are written to TFLite files, which LiteRT runs on the rows that `plimsoll predict` gets. A line per
file: max|difference| / max|reference| and the aim, operators, bytes. For int8, the cosine of both outputs is the figure: the aim is 0.9, as
random weights are no task on which accuracy could be measured. The exit status is 1 if an aim is missed. The Python environment has pinned
packages and is made once, outside of the repository (in $MODELS_CHECK_VENVS, or the user's cache folder).
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import models_check
from models_check import Results, environment, predicted, random_run, relative, run, zoo

models_check.ENVIRONMENTS["litert"] = ["ai-edge-litert==2.3.0", "numpy==2.4.6"]
NETWORKS = ["cifar-cnn", "mobilenet-v1", "mobilenet-v2", "resnet18", "unet", "lstm", "gru", "char-gpt", "vit-tiny"]
NUMBERS = {"f32": ([], 1e-4), "f16": (["--f16"], 1e-2), "dynamic": (["--dynamic"], 0.1), "int8": (["--int8"], 0.1)}
INSIDE = "TFLITE_CHECK_INSIDE"


def litert(path, x):
    """The outputs of LiteRT, row by row or for all rows, and the operators of the file."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    given = interpreter.get_input_details()[0]
    open_batch = list(given["shape_signature"])[0] == -1
    outputs = []
    if open_batch:
        interpreter.resize_tensor_input(given["index"], x.shape)
    interpreter.allocate_tensors()
    result = interpreter.get_output_details()[0]
    for row in [x] if open_batch else [x[i:i + 1] for i in range(len(x))]:
        interpreter.reset_all_variables()
        interpreter.set_tensor(given["index"], row.astype(given["dtype"]))
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(result["index"]))
    operators = [detail["op_name"] for detail in interpreter._get_ops_details() if detail["op_name"] != "DELEGATE"]
    return np.concatenate(outputs), len(operators), open_batch


def cosine(found, wanted):
    import numpy as np

    found, wanted = np.asarray(found, np.float64).ravel(), np.asarray(wanted, np.float64).ravel()
    return float(found @ wanted / np.sqrt((found @ found) * (wanted @ wanted)))


def calibration(folder, x):
    """A configuration whose data is drawn as the sample rows are."""
    import numpy as np

    draw = np.random.default_rng(2)
    shape = (32, *x.shape[1:])
    rows = draw.integers(0, x.max() + 1, size=shape).astype(np.int32) if x.dtype == np.int32 else draw.uniform(0, 1, size=shape).astype(np.float32)
    np.save(folder / "rows.npy", rows)
    path = folder / "calibrate.toml"
    path.write_text('[data]\nsource = "npy"\nx = "rows.npy"\n')
    return path


def check(program, names, numbers):
    missed = 0
    for name, shape, keys in zoo(program, names or NETWORKS):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            x = random_run(program, folder, name, shape, keys)
            wanted = predicted(program, folder, x)
            for kind in numbers or NUMBERS:
                flags, aim = NUMBERS[kind]
                results = Results(kind)

                def work():
                    path = folder / f"{kind}.tflite"
                    calibrate = ["--calibrate", calibration(folder, x)] if kind == "int8" else []
                    said = run(program, "export", folder, "--to", path, *flags, *calibrate)
                    own = next(line.strip() for line in said.splitlines() if "sample rows" in line)
                    found, operators, open_batch = litert(path, x)
                    note = f"{operators} operators, {path.stat().st_size} bytes, {'any batch' if open_batch else 'one row'}; own: {own}"
                    if kind == "int8":
                        return 1 - cosine(found, wanted), f"cosine {cosine(found, wanted):.4f}, {note}"
                    return relative(found, wanted), note
                results.add(name, work, aim)
                missed += results.missed
    return missed


def main():
    program = str(Path(sys.argv[1]).resolve())
    names = sys.argv[2:]
    numbers = []
    while "--numbers" in names:
        at = names.index("--numbers")
        numbers.append(names[at + 1])
        del names[at:at + 2]
    if INSIDE not in os.environ:
        python = environment("litert")
        sys.exit(subprocess.run([python, *sys.argv], env={**os.environ, INSIDE: "1"}).returncode)
    sys.exit(1 if check(program, names, numbers) else 0)


if __name__ == "__main__":
    main()
