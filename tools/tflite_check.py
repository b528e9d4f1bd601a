#!/usr/bin/env python3
"""Compares TFLite files with LiteRT's interpreter: single precision, half precision, weights in int8, everything in int8.

    tools/tflite_check.py target/release/plimsoll                       all networks (half an hour on two cores)
    tools/tflite_check.py target/release/plimsoll mobilenet-v2 lstm     some networks
    tools/tflite_check.py target/release/plimsoll --numbers f32 unet    one type of numbers

Networks of the zoo with random weights are written to TFLite files, which LiteRT runs on the rows that `plimsoll predict` gets. A line per
file: max|difference| / max|reference| and the aim, operators, bytes. For int8, the cosine of both outputs is the figure: the aim is 0.9, as
random weights are no task on which accuracy could be measured. Behind `file:`, `plimsoll predict` runs the file itself: the greatest
difference from LiteRT's reference kernels, for int8 in steps of the output, and from its default kernels. The exit status is 1 if an aim is
missed. The Python environment has pinned packages and is made once, outside of the repository (in $MODELS_CHECK_VENVS, or the user's cache
folder).
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import models_check
from models_check import Results, environment, random_run, relative, run, zoo

models_check.ENVIRONMENTS["litert"] = ["ai-edge-litert==2.3.0", "numpy==2.4.6"]
NETWORKS = ["cifar-cnn", "mobilenet-v1", "mobilenet-v2", "resnet18", "unet", "lstm", "gru", "char-gpt", "vit-tiny"]
NUMBERS = {"f32": ([], 1e-4), "f16": (["--f16"], 1e-2), "dynamic": (["--dynamic"], 0.1), "int8": (["--int8"], 0.1)}
# Steps of the output between the file's own interpreter and LiteRT's reference kernels.
STEPS = 1
INSIDE = "TFLITE_CHECK_INSIDE"


def litert(path, x, reference=False):
    """The outputs of LiteRT, row by row or for all rows, the operators of the file, and the scale of its output."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    resolver = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
    interpreter = Interpreter(model_path=str(path), experimental_op_resolver_type=resolver)
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
    operators = [detail for detail in interpreter._get_ops_details() if detail["op_name"] != "DELEGATE"]
    # The step of the output: the scale of the int8 tensor that is dequantized last.
    last = operators[-1]
    scales = [interpreter._get_tensor_details(i, 0)["quantization"][0] for i in last["inputs"][:1]] if last["op_name"] == "DEQUANTIZE" else []
    return np.concatenate(outputs), len(operators), open_batch, scales[0] if scales else None


def predicted(program, model, x, folder):
    """What `plimsoll predict` gives, and its seconds."""
    import numpy as np

    np.save(folder / "x.npy", x)
    start = time.monotonic()
    run(program, "predict", model, "--input", folder / "x.npy", "--out", folder / "y.npy")
    return np.load(folder / "y.npy"), time.monotonic() - start


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


def own_difference(program, path, x, folder, step):
    """The file in its own interpreter against LiteRT's kernels: whether it is close enough, and a note."""
    import numpy as np

    own, seconds = predicted(program, path, x, folder)
    reference, default = litert(path, x, reference=True)[0], litert(path, x)[0]
    if step:
        away, usual = (float(np.abs(own.reshape(other.shape) - other).max() / step) for other in (reference, default))
        return away <= STEPS + 0.01, f"file: {away:.0f} steps from the reference kernels, {usual:.0f} from the default ones, {seconds:.1f} s"
    away, usual = relative(own, reference), relative(own, default)
    return True, f"file: {away:.1e} from the reference kernels, {usual:.1e} from the default ones, {seconds:.1f} s"


def check(program, names, numbers):
    missed = 0
    for name, shape, keys in zoo(program, names or NETWORKS):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            x = random_run(program, folder, name, shape, keys)
            wanted, _ = predicted(program, folder, x, folder)
            for kind in numbers or NUMBERS:
                flags, aim = NUMBERS[kind]
                results = Results(kind)

                def work():
                    path = folder / f"{kind}.tflite"
                    calibrate = ["--calibrate", calibration(folder, x)] if kind == "int8" else []
                    run(program, "export", folder, "--to", path, *flags, *calibrate)
                    found, operators, open_batch, step = litert(path, x)
                    close, own = own_difference(program, path, x, folder, step)
                    note = f"{operators} operators, {path.stat().st_size} bytes, {'any batch' if open_batch else 'one row'}; {own}"
                    if not close:
                        raise RuntimeError(note)
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
