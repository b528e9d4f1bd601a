#!/usr/bin/env python3
"""Compares int8 files with those of TensorFlow's converter: the same Keras model, the same rows for calibration.

    tools/tflite_converter_check.py target/release/plimsoll                  all models (ten minutes on two cores)
    tools/tflite_converter_check.py target/release/plimsoll cnn mobilenet    some models
    tools/tflite_converter_check.py target/release/plimsoll --tensors cnn    every tensor

A line per model: operators and versions that differ, the greatest difference of a scale in int8 steps (of weights and of activations), the
size of both files. The aims: the same operators and versions, one step, 5 %. The exit status is 1 if one is missed. The Python environment
is that of tools/models_check.py.

Two differences are known, and counted instead of missed. TensorFlow computes the shape of a reshape in the file: operators that only make
shapes are left out. Its calibrator reads the inputs of an operator a second time behind it, when an elementwise operator has overwritten
one of them with its result: such an input has the union of both ranges there. An LSTM is converted from tf_keras, for one row, as that
of Keras 3 does not become one operator there.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from models_check import environment, run

INSIDE = "TFLITE_CONVERTER_CHECK_INSIDE"
ROWS = 32


def models():
    """Models by name: a function that makes one, and the shape of its rows."""
    import keras
    from keras import layers

    def cnn():
        return keras.Sequential([
            keras.Input((32, 32, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"), layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"), layers.MaxPooling2D(),
            layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10, activation="softmax"),
        ])

    def residual():
        x = given = keras.Input((32, 32, 3))
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same", use_bias=False)(x)))
        for filters, stride in [(16, 1), (32, 2)]:
            short = x
            y = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)))
            y = layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same", use_bias=False)(y))
            if stride > 1:
                short = layers.BatchNormalization()(layers.Conv2D(filters, 1, stride, use_bias=False)(short))
            x = layers.ReLU()(layers.Add()([y, short]))
        x = layers.GlobalAveragePooling2D()(x)
        return keras.Model(given, layers.Dense(10)(x))

    def mobilenet(kind, size):
        return lambda: kind(weights=None, alpha=0.25 if kind is keras.applications.MobileNet else 0.35, input_shape=(size, size, 3), classes=10)

    def lstm(library=keras, batch=None):
        wide = library.initializers.RandomNormal(stddev=0.6)
        return library.Sequential([
            library.layers.Input((12, 8), batch_size=batch),
            library.layers.LSTM(32, kernel_initializer=wide), library.layers.Dense(10, activation="softmax"),
        ])

    def dense():
        return keras.Sequential([keras.Input((20,)), layers.Dense(64, activation="relu"), layers.Dense(1)])

    return {
        "cnn": (cnn, (32, 32, 3)),
        "residual": (residual, (32, 32, 3)),
        "mobilenet": (mobilenet(keras.applications.MobileNet, 64), (64, 64, 3)),
        "mobilenet-v2": (mobilenet(keras.applications.MobileNetV2, 64), (64, 64, 3)),
        "dense": (dense, (20,)),
        "lstm": (lstm, (12, 8)),
    }


@contextlib.contextmanager
def quiet():
    """Without what the converter prints."""
    kept = [os.dup(1), os.dup(2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    sys.stdout.flush()
    try:
        for at in (1, 2):
            os.dup2(nothing, at)
        yield
    finally:
        sys.stdout.flush()
        for at, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, at)
            os.close(descriptor)
        os.close(nothing)


def converted(model, rows):
    """The model as TensorFlow's converter writes it in int8."""
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([row[None]] for row in rows)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    with quiet():
        return converter.convert()


def operators(data):
    """The operators of a file: name, version, and its tensors as (kind, scales, zero points)."""
    from tensorflow.lite.python import schema_py_generated as schema

    model = schema.Model.GetRootAs(data, 0)
    names = {code: name for name, code in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    graph = model.Subgraphs(0)
    found = []
    for i in range(graph.OperatorsLength()):
        operator = graph.Operators(i)
        code = model.OperatorCodes(operator.OpcodeIndex())
        tensors = []
        for kind, count, at in [("input", operator.InputsLength(), operator.Inputs), ("output", operator.OutputsLength(), operator.Outputs)]:
            for j in range(count):
                if at(j) < 0:
                    continue
                tensor = graph.Tensors(at(j))
                buffer = model.Buffers(tensor.Buffer())
                constant = buffer is not None and buffer.DataLength() > 0
                parameters = tensor.Quantization()
                scales = parameters.ScaleAsNumpy() if parameters is not None and parameters.ScaleLength() else []
                zeros = parameters.ZeroPointAsNumpy() if parameters is not None and parameters.ZeroPointLength() else []
                tensors.append((f"{'constant' if constant else kind} {j}", tensor.Type(), list(scales), list(zeros), tensor.Name().decode()))
        outputs = [graph.Tensors(operator.Outputs(j)).Type() for j in range(operator.OutputsLength())]
        if all(kind == schema.TensorType.INT32 for kind in outputs):
            continue  # a shape
        found.append((names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())], code.Version(), tensors))
    return found


def range_of(tensor):
    """The smallest and largest number of an int8 tensor."""
    scale, zero = float(tensor[2][0]), int(tensor[3][0])
    return (-128 - zero) * scale, (127 - zero) * scale


def overwritten(own, theirs):
    """The inputs, by name in TensorFlow's file, that an elementwise operator overwrote before the calibrator read them a second time: their
    scale is that of the union with the operator's result."""
    found = set()
    for (op, _, ours), (_, _, others) in zip(own, theirs):
        for our, other in zip(ours[:2], others[:2]) if op in ("ADD", "SUB", "MUL") else []:
            if not our[2] or not other[2]:
                continue
            (low, high), (low_result, high_result) = range_of(our), range_of(ours[-1])
            union = (max(high, high_result) - min(low, low_result)) / 255
            if union > 1.01 * our[2][0] and abs(union - other[2][0]) / union * 255 <= 2:
                found.add(other[4])
    return found


def difference(own, other):
    """The greatest difference of scales in int8 steps, and of zero points."""
    if len(own[2]) != len(other[2]):
        return float("inf"), f"{len(own[2])} scales, {len(other[2])} in TensorFlow's file"
    steps = max([abs(a - b) / max(abs(b), 1e-30) * 255 for a, b in zip(own[2], other[2])], default=0)
    zeros = max([abs(int(a) - int(b)) for a, b in zip(own[3], other[3])], default=0)
    return max(steps, float(zeros)), f"scale {own[2][:1]} zero {own[3][:1]}, TensorFlow {other[2][:1]} {other[3][:1]}"


def compare(name, program, folder, every):
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    make, shape = models()[name]
    model = make()
    draw = np.random.default_rng(1)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            gamma, beta, mean, variance = layer.get_weights()
            layer.set_weights([draw.uniform(0.8, 1.2, gamma.shape), 0.1 * draw.normal(size=beta.shape), 0.1 * draw.normal(size=mean.shape),
                               draw.uniform(0.8, 1.2, variance.shape)])
    rows = draw.uniform(-1, 1, size=(ROWS, *shape)).astype(np.float32)
    np.save(folder / "rows.npy", rows)
    model.save(folder / "model.keras")
    (folder / "rows.toml").write_text('[data]\nsource = "npy"\nx = "rows.npy"\n')
    twin = model
    if name == "lstm":
        import tf_keras

        twin = make(tf_keras, 1)
        twin.set_weights(model.get_weights())
    other = converted(twin, rows)
    (folder / "tensorflow.tflite").write_bytes(other)
    path = folder / "own.tflite"
    run(program, "export", folder / "model.keras", "--to", path, "--int8", "--calibrate", folder / "rows.toml", "--calibrate-rows", ROWS)
    own, other = operators(path.read_bytes()), operators(other)
    sizes = [path.stat().st_size, (folder / "tensorflow.tflite").stat().st_size]
    problems = []
    listed = [[f"{op} {version}" for op, version, _ in found] for found in (own, other)]
    if listed[0] != listed[1]:
        problems.append(f"operators differ\n    own:        {', '.join(listed[0])}\n    TensorFlow: {', '.join(listed[1])}")
    # Padding and reshapes keep scales: without those of one file, the others are compared.
    if listed[0] != listed[1]:
        own, other = ([found for found in file if found[0] not in ("PAD", "RESHAPE")] for file in (own, other))
    known = overwritten(own, other) if len(own) == len(other) else set()
    worst = {"weights": 0.0, "activations": 0.0}
    for (op, _, ours), (_, _, theirs) in zip(own, other) if [o for o, *_ in own] == [o for o, *_ in other] else []:
        for a, b in zip(ours, theirs):
            steps, note = difference(a, b)
            kind = "weights" if a[0].startswith("constant") else "activations"
            if b[4] in known:
                if every:
                    print(f"  {op} {a[0]} ({a[4]}): overwritten in place while TensorFlow calibrated, {steps:.2f} steps; {note}")
                continue
            worst[kind] = max(worst[kind], steps)
            if steps > 1 or a[1] != b[1] or every:
                text = f"{op} {a[0]} ({a[4]}): {steps:.2f} steps, types {a[1]} {b[1]}; {note}"
                (print if every else problems.append)("  " + text)
    ratio = sizes[0] / sizes[1]
    if ratio > 1.05:
        problems.append(f"the file is {100 * (ratio - 1):.1f} % larger")
    figures = ", ".join(f"{kind} {steps:.3f} steps" for kind, steps in worst.items())
    print(f"{name:14} {len(listed[0])} operators; {figures}; {len(known)} overwritten; {sizes[0]} bytes, TensorFlow {sizes[1]} ({100 * (ratio - 1):+.1f} %)", flush=True)
    for problem in problems:
        print(f"  MISSED {problem}", flush=True)
    return bool(problems)


def main():
    program = str(Path(sys.argv[1]).resolve())
    names = sys.argv[2:]
    every = "--tensors" in names
    names = [name for name in names if name != "--tensors"]
    if INSIDE not in os.environ:
        quiet = {**os.environ, INSIDE: "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        sys.exit(subprocess.run([environment("keras"), *sys.argv], env=quiet).returncode)
    missed = 0
    for name in names or models():
        with tempfile.TemporaryDirectory() as folder:
            missed += compare(name, program, Path(folder), every)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
