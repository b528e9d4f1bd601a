#!/usr/bin/env python3
"""Compares models in and out with the programs they are for: Keras, ONNX Runtime, torchvision, timm and transformers.

    tools/models_check.py target/release/plimsoll                     everything (hours on two cores)
    tools/models_check.py target/release/plimsoll onnx-out resnet50   one check, one network

Everything ends with the tables of docs/models.md, which UPDATE_DOCS=1 writes there. With a file in $MODELS_CHECK_RECORDS, a run that was
interrupted continues after the models that are recorded there, if the program is the same to the byte; `tables` as the check only writes
the tables.

Checks: onnx-out, keras-training, keras-in, keras-out, safetensors-in. Each runs in a Python environment of pinned packages, which is made
once, outside of the repository (in $MODELS_CHECK_VENVS, or the user's cache folder). A line per model: max|difference| / max|reference|
and the aim. The exit status is 1 if one is missed.
"""

import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import models_tables

# Packages of each environment; torch brings libraries of several gigabytes.
ENVIRONMENTS = {
    "keras": ["keras==3.15.1", "tensorflow-cpu==2.21.0", "tf_keras==2.21.0", "numpy==2.4.6"],
    "onnx": ["onnx==1.22.0", "onnxruntime==1.31.1", "numpy==2.4.6"],
    "torch": ["torch==2.15.0", "torchvision==0.29.2", "timm==1.0.31", "transformers==5.23.0", "safetensors", "numpy==2.4.6"],
}
CHECKS = {
    "onnx-out": "onnx",
    "keras-training": "keras",
    "keras-in": "keras",
    "keras-out": "keras",
    "safetensors-in": "torch",
}
INSIDE = "MODELS_CHECK_INSIDE"
RECORDS = "MODELS_CHECK_RECORDS"
# The program by its contents: records of another one do not count.
BUILD = "MODELS_CHECK_BUILD"


def environment(name):
    """The Python of an environment, made on first use."""
    root = Path(os.environ.get("MODELS_CHECK_VENVS") or Path.home() / ".cache" / "plimsoll-models-check")
    python = root / name / "bin" / "python"
    done = root / f"{name}.done"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", root / name], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *ENVIRONMENTS[name]], check=True)
        done.touch()
    return python


def run(program, *arguments, cwd=None):
    done = subprocess.run([program, *map(str, arguments)], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


class Results:
    """A line per model, and whether all aims were reached."""

    def __init__(self, check):
        self.check, self.missed = check, 0
        # What an earlier part of this run has found.
        self.known = {record["name"]: record for record in recorded() if record["check"] == check}

    def add(self, name, work, aim=1e-4):
        """`work` returns the difference, a note, and optionally the distances from float64 of this program and of Keras: where Keras
        itself is further away than the aim, this program may be twice as far, since both are draws of amplified rounding."""
        if name in self.known:
            self.missed += not self.known[name]["reached"]
            return
        try:
            difference, note, *exact = work()
        except Exception as error:  # every model is reported
            self.missed += 1
            print(f"{self.check:16} {name:28} FAILED {str(error)[:400]}", flush=True)
            self.record(name, difference=None, note="failed", reached=False)
            return
        ours, keras = exact or (difference, 0.0)
        reached = difference <= aim or (keras > aim and ours <= 2 * keras)
        self.missed += not reached
        self.record(name, difference=difference, note=note, exact=exact, reached=reached)
        distances = f" from float64: {ours:.1e}, Keras {keras:.1e};" if exact else ""
        print(f"{self.check:16} {name:28} {difference:.1e} {'' if reached else 'ABOVE '}{aim:g}{distances} {note}", flush=True)

    def record(self, name, **found):
        if RECORDS in os.environ:
            with open(os.environ[RECORDS], "a") as records:
                records.write(json.dumps({"build": os.environ[BUILD], "check": self.check, "name": name, **found}) + "\n")


def recorded():
    """The records of this run."""
    path = Path(os.environ.get(RECORDS, ""))
    lines = path.read_text().splitlines() if path.is_file() else []
    return [record for record in map(json.loads, lines) if record["build"] == os.environ[BUILD]]


def relative(found, wanted):
    import numpy as np

    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    return float(np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max())


# --- Keras in ---

APPLICATIONS = {
    "xception": 96, "vgg16": 64, "vgg19": 64, "resnet50": 64, "resnet101": 64, "resnet50v2": 64, "inception_v3": 96,
    "inception_resnet_v2": 96, "mobilenet": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "mobilenet_v3_large": 64, "densenet121": 64,
    "nasnet_mobile": 64, "efficientnet_b0": 64, "efficientnet_v2b0": 64, "efficientnet_v2s": 64, "convnext_tiny": 64,
}


def application(name):
    """A network of keras.applications with random weights."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    found = [getattr(keras.applications, known) for known in dir(keras.applications) if known.lower() == name.replace("_", "")]
    size = APPLICATIONS[name]
    model = found[0](weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None)
    return model, size, np.random.default_rng(1)


# Statistics and scales are within a tenth of 0 and 1. Scales from 0.5 to 1.5 multiply over the 40 blocks of EfficientNetV2-S, until Keras
# in float32 differs by 0.4 from itself in float64.
SPREAD = 0.1


def randomize(model, draw):
    """Random statistics, scales and offsets: no layer is the identity."""
    for weight in model.weights:
        if any(name in weight.path for name in ("moving_mean", "beta", "bias")):
            weight.assign(SPREAD * draw.normal(size=weight.shape))
        elif "moving_variance" in weight.path or "gamma" in weight.path:
            weight.assign(draw.uniform(1 - SPREAD, 1 + SPREAD, size=weight.shape))


def keras_graphs():
    """Text and series models, nested and shared layers: name, model, sample rows."""
    import keras
    import numpy as np

    layers, draw = keras.layers, np.random.default_rng(2)
    keras.utils.set_random_seed(2)
    tokens = np.where(np.arange(40) < draw.integers(5, 41, size=(4, 1)), draw.integers(1, 500, size=(4, 40)), 0).astype(np.int32)
    words = keras.Input((40,), dtype="int32")
    x = layers.Embedding(500, 64, mask_zero=True)(words)
    x = layers.Bidirectional(layers.LSTM(48, return_sequences=True))(x)
    x = layers.Dropout(0.3)(layers.GRU(32)(x))
    yield "text: bidirectional LSTM", keras.Model(words, layers.Dense(2, activation="softmax")(x)), tokens

    words = keras.Input((40,), dtype="int32")
    x = layers.Embedding(500, 64)(words)
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(y, y, use_causal_mask=True)])
        y = layers.Dense(128, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(64)(y)])
    yield "text: transformer", keras.Model(words, layers.Dense(500)(layers.LayerNormalization()(x))), tokens

    series = draw.normal(size=(4, 96, 7)).astype(np.float32)
    stages = [keras.Input((96, 7)), layers.Conv1D(32, 5, padding="causal", activation="relu")]
    for dilation in (2, 4, 8):
        stages += [layers.Conv1D(32, 3, padding="causal", dilation_rate=dilation), layers.BatchNormalization(), layers.Activation("swish")]
    stages += [layers.MaxPooling1D(2), layers.LSTM(24, return_sequences=True), layers.TimeDistributed(layers.Dense(8)), layers.SimpleRNN(16)]
    yield "series: convolutions and LSTM", keras.Sequential([*stages, layers.Dense(3)]), series

    pair = keras.Input((96, 7))
    encoder = keras.Sequential([keras.Input((48, 7)), layers.GRU(24, return_sequences=True), layers.GlobalAveragePooling1D()])
    inner = keras.Input((24,))
    block = keras.Model(inner, layers.Add()([inner, layers.Dense(24, activation="tanh")(inner)]))
    left, right = (block(block(encoder(half))) for half in (pair[:, :48], pair[:, 48:]))
    both = layers.Concatenate()([left, right, layers.Multiply()([left, right])])
    yield "nested and shared models", keras.Model(pair, layers.Dense(1, activation="sigmoid")(both)), series


def keras_in(program, names):
    import numpy as np

    def compared(model, x, draw):
        randomize(model, draw)
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model.save(folder / "model.keras")
            np.save(folder / "x.npy", x)
            run(program, "predict", "model.keras", "--input", "x.npy", "--out", "y.npy", cwd=folder)
            return relative(np.load(folder / "y.npy"), model(x, training=False)), f"{model.count_params():,} parameters"

    results = Results("keras-in")
    for name in names or APPLICATIONS:
        def work():
            model, size, draw = application(name)
            return compared(model, draw.uniform(0, 255, size=(4, size, size, 3)).astype(np.float32), draw)
        results.add(name, work)
    for name, model, x in keras_graphs() if not names else []:
        results.add(name, lambda: compared(model, x, np.random.default_rng(1)))
    return results.missed


STEPS = 20
# Deep networks whose smaller siblings are trained.
NOT_TRAINED = {"vgg19", "resnet101", "inception_resnet_v2"}


def keras_training(program, names):
    """The losses of 20 steps of SGD in float32 on a batch of 8 images of 64×64 (or the least size), without dropout, from Keras' initial
    weights. The learning rate lowers the loss by one per cent in the first step. Batch statistics over 8 images of few pixels amplify
    rounding, so both programs are also compared with Keras in float64: their losses and, where those of Keras are further away than the
    aim, the gradients of the first step."""
    import keras
    import numpy as np
    import tensorflow

    def without_dropout(layer):
        config = layer.get_config()
        if layer.__class__.__name__ in ("Dropout", "StochasticDepth"):
            config["rate" if "rate" in config else "drop_path_rate"] = 0.0
        return layer.__class__.from_config(config)

    def in_float64(model, weights):
        def as_float64(layer):
            # An operation such as `x + y`, which is no layer, has the type of its inputs.
            dtype = {"dtype": "float64"} if isinstance(layer, keras.layers.Layer) else {}
            return layer.__class__.from_config({**layer.get_config(), **dtype})
        model = keras.models.clone_model(model, clone_function=as_float64)
        model.set_weights(weights)
        return model

    def losses(model, rate, loss, x, y):
        model.compile(keras.optimizers.SGD(rate), loss, run_eagerly=True)
        found = []
        for _ in range(STEPS):
            model.reset_metrics()
            found.append(float(model.train_on_batch(x, y)))
        return found

    def gradients(model, loss, x, y):
        """The first loss and the gradient of every weight, by name."""
        with tensorflow.GradientTape() as tape:
            first = loss(y, model(x, training=True))
        found = tape.gradient(first, model.trainable_variables)
        by_name = {weight.path: tensorflow.convert_to_tensor(g).numpy() for weight, g in zip(model.trainable_variables, found)}
        return float(first), by_name

    def trained(folder, rate, epochs, rows):
        """Losses here, and the folder of the run."""
        (folder / "run.toml").write_text(
            '[model]\nfile = "model.keras"\n[data]\nsource = "npy"\nx = "x.npy"\ny = "y.npy"\nshuffle = false\n'
            f'[train]\nbatch = {rows}\nepochs = {epochs}\noptimizer = {{ type = "sgd", lr = {rate} }}\n'
        )
        out = f"out-{epochs}"
        run(program, "train", "run.toml", "--out", out, "--no-calibrate", "--quiet", cwd=folder)
        return [json.loads(line)["loss"] for line in (folder / out / "log.jsonl").read_text().splitlines()], folder / out

    def own_gradients(folder, weights, rows):
        """The gradients here: what a step with a large rate takes from the weights."""
        rate = 1000.0
        _, out = trained(folder, rate, 1, rows)
        header, data = read_tensors(out / "weights.safetensors")
        found = {}
        for key in weights.keys() & header.keys():
            start, end = header[key]["data_offsets"]
            after = np.frombuffer(bytes(data[start:end]), np.float32).astype(np.float64)
            found[key] = (weights[key].astype(np.float64).ravel() - after) / rate
        return found

    def distance(found, exact):
        """Of all gradients together, those that both have."""
        common = found.keys() & exact.keys()
        wrong = sum(float(((found[key].ravel() - exact[key].ravel()) ** 2).sum()) for key in common)
        return (wrong / sum(float((exact[key] ** 2).sum()) for key in common)) ** 0.5

    def compared(model, loss, x, y):
        model = keras.models.clone_model(model, clone_function=without_dropout)
        weights = model.get_weights()
        start = {weight.path: weight.numpy() for weight in model.trainable_variables}
        first, slopes = gradients(model, loss, x, y)
        rate = float(f"{0.01 * first / sum(float((g.astype(np.float64) ** 2).sum()) for g in slopes.values()):.3g}")
        model.set_weights(weights)
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            model.compile(keras.optimizers.SGD(rate), loss)
            model.save(folder / "model.keras")
            np.save(folder / "x.npy", x)
            np.save(folder / "y.npy", y)
            found, _ = trained(folder, rate, STEPS, len(x))
            wanted = losses(model, rate, loss, x, y)
            keras.config.set_floatx("float64")
            try:
                wide = x if x.dtype == np.int32 else x.astype(np.float64)
                exact = losses(in_float64(model, weights), rate, loss, wide, y)
                note = f"lr {rate:g}: {wanted[0]:.3f} to {wanted[-1]:.3f}"
                if relative(wanted, exact) > 1e-3:
                    _, truth = gradients(in_float64(model, weights), loss, wide, y)
                    own = own_gradients(folder, start, len(x))
                    note += f"; first gradients from float64: {distance(own, truth):.0e}, Keras {distance(slopes, truth):.0e}"
                    note += f" ({len(own)} of {len(start)} weights)" if len(own) < len(start) else ""
            finally:
                keras.config.set_floatx("float32")
        return relative(found, wanted), note, relative(found, exact), relative(wanted, exact)

    results = Results("keras-training")
    for name in names or [name for name in APPLICATIONS if name not in NOT_TRAINED]:
        def work():
            model, size, draw = application(name)
            x = draw.uniform(0, 1, size=(8, size, size, 3)).astype(np.float32)
            y = draw.integers(0, 10, size=8).astype(np.int32)
            return compared(model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), x, y)
        results.add(name, work, 1e-3)
    for name, model, x in keras_graphs() if not names else []:
        y = np.random.default_rng(3).uniform(0, 1, size=(len(x), *model.output_shape[1:])).astype(np.float32)
        results.add(name, lambda: compared(model, keras.losses.MeanSquaredError(), x, y), 1e-3)
    return results.missed


# --- networks of the zoo ---

def zoo(program, names):
    """The zoo's networks with small inputs: name, input shape and keys of the configuration."""
    for entry in json.loads(run(program, "zoo", "--json")):
        name, shape, keys = entry["name"], entry["input"], {}
        if names and name not in names:
            continue
        if len(shape) == 3 and shape[0] > 64:
            size = 96 if name == "inception-v3" else 64
            shape = [size, size, shape[2]]
            keys["input"] = shape
        if len(shape) == 1:
            shape = [48]
            keys["context"] = 48
        yield name, shape, keys


def read_tensors(path):
    data = Path(path).read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), bytearray(data[8 + length:])


def write_tensors(path, header, data):
    header = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(header)) + header + bytes(data))


def random_run(program, folder, name, shape, keys):
    """A run folder of a network whose weights are all random, and sample rows for it."""
    import numpy as np

    settings = [part for key, value in keys.items() for part in ("--set", f"model.{key}={json.dumps(value)}")]
    weights = folder / "weights.safetensors"
    run(program, "export", "--zoo", name, "--to", weights, "--rows", 0, *settings)
    header, data = read_tensors(weights)
    draw = np.random.default_rng(1)
    vocabulary = 0
    for key, entry in header.items():
        if key == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        numbers = np.frombuffer(bytes(data[start:end]), np.float32).copy()
        if key.endswith(("moving_mean", "beta", "bias")):
            numbers = 0.1 * draw.normal(size=numbers.shape)
        elif key.endswith(("moving_variance", "gamma")):
            numbers = draw.uniform(0.5, 1.5, size=numbers.shape)
        elif not numbers.any():
            numbers = 0.05 * draw.normal(size=numbers.shape)
        data[start:end] = numbers.astype(np.float32).tobytes()
        if key.endswith("tokens/embeddings"):
            vocabulary = entry["shape"][0]
    write_tensors(weights, header, data)
    configured(folder, name, keys)
    if vocabulary:
        return draw.integers(0, vocabulary, size=(3, *shape)).astype(np.int32)
    return draw.uniform(0, 1, size=(3, *shape)).astype(np.float32)


def configured(folder, name, keys):
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    text = f'[model]\nzoo = "{name}"\n{keys}[data]\nsource = "synthetic"\n[train]\nbatch = 4\n'
    (folder / "config.toml").write_text(text)


def predicted(program, folder, x):
    import numpy as np

    np.save(folder / "x.npy", x)
    run(program, "predict", folder, "--input", folder / "x.npy", "--out", folder / "y.npy")
    return np.load(folder / "y.npy")


def onnx_out(program, names):
    import onnx
    import onnxruntime

    def exported(folder, wanted, x, opset):
        path = str(folder / "model.onnx")
        said = run(program, "export", folder, "--to", path, "--opset", opset)
        onnx.checker.check_model(path, full_check=True)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found = session.run(None, {session.get_inputs()[0].name: x})[0]
        nodes = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
        note = f"opset {opset}, {len(nodes)} nodes, {nodes.count('Transpose')} transposes; {said.strip().splitlines()[-1].strip()}"
        return relative(found, wanted), note

    results = Results("onnx-out")
    for name, shape, keys in zoo(program, names):
        def work():
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder)
                x = random_run(program, folder, name, shape, keys)
                wanted = predicted(program, folder, x)
                found = [exported(folder, wanted, x, opset) for opset in (18, 23)]
                return max(difference for difference, _ in found), "; ".join(note for _, note in found)
        results.add(name, work)
    return results.missed


# Networks with layers that Keras does not have: class tokens, position embeddings, tied scores, unpooling, ceil-mode pooling.
NOT_IN_KERAS = {"vit-tiny", "vit-small", "vit-base", "gpt2-124m", "gpt2-355m", "char-gpt", "bert-base", "segnet"}


def keras_out(program, names):
    import keras

    results = Results("keras-out")
    for name, shape, keys in zoo(program, names):
        if name in NOT_IN_KERAS:
            continue
        def work():
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder)
                x = random_run(program, folder, name, shape, keys)
                said = run(program, "export", folder, "--to", folder / "model.keras")
                model = keras.saving.load_model(folder / "model.keras")
                # Without compiling a graph for three rows.
                model.run_eagerly = True
                note = f"{len(model.layers)} layers; {said.strip().splitlines()[-1].strip()}"
                return relative(model.predict(x, verbose=0), predicted(program, folder, x)), note
        results.add(name, work)
    return results.missed


# --- weights of other libraries ---

def foreign_models():
    """Library, name, network of the zoo with its keys, and a function that makes the model."""
    import timm
    import torchvision.models as vision
    import transformers

    for name, network in [
        ("resnet18", "resnet18"), ("resnet34", "resnet34"), ("resnet50", "resnet50"), ("resnet101", "resnet101"), ("vgg16", "vgg16"),
        ("vgg19", "vgg19"), ("densenet121", "densenet121"), ("googlenet", "googlenet"), ("inception_v3", "inception-v3"),
        ("mobilenet_v2", "mobilenet-v2"), ("efficientnet_b0", "efficientnet-b0"), ("vit_b_16", "vit-base"),
    ]:
        options = {"init_weights": False, "aux_logits": False} if network in ("googlenet", "inception-v3") else {}
        yield f"torchvision {name}", network, {}, lambda name=name, options=options: getattr(vision, name)(weights=None, **options)
    for name, network in [
        ("resnet18", "resnet18"), ("resnet50", "resnet50"), ("vgg16", "vgg16"), ("densenet121", "densenet121"),
        ("inception_v3", "inception-v3"), ("mobilenetv2_100", "mobilenet-v2"), ("efficientnet_b0", "efficientnet-b0"),
        ("vit_tiny_patch16_224", "vit-tiny"), ("vit_small_patch16_224", "vit-small"), ("vit_base_patch16_224", "vit-base"),
    ]:
        yield f"timm {name}", network, {}, lambda name=name: timm.create_model(name, pretrained=False)
    labels = {"num_labels": 1000}
    # With the epsilon of timm and torchvision, which the zoo has; with the default here, 1e-12, outputs differ by 2e-4. The table has it.
    vit = transformers.ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768, layer_norm_eps=1e-6, **labels)
    yield "transformers ViT (epsilon 1e-6)", "vit-tiny", {}, lambda: transformers.ViTForImageClassification(vit)
    resnet = transformers.ResNetConfig(**labels)
    yield "transformers ResNet", "resnet50", {}, lambda: transformers.ResNetForImageClassification(resnet)
    gpt = transformers.GPT2Config(n_positions=64)
    yield "transformers GPT-2", "gpt2-124m", {"context": 64}, lambda: transformers.GPT2LMHeadModel(gpt)
    bert = transformers.BertConfig(max_position_embeddings=64)
    yield "transformers BERT", "bert-base", {"context": 64}, lambda: transformers.BertForSequenceClassification(bert)


def safetensors_in(program, names):
    import numpy as np
    import torch
    from safetensors.torch import save_file

    results = Results("safetensors-in")
    for name, network, keys, make in foreign_models():
        if names and not any(wanted in name for wanted in names):
            continue
        def work():
            torch.manual_seed(1)
            model = make().eval()
            with torch.no_grad():
                for key, value in [*model.named_parameters(), *model.named_buffers()]:
                    if key.endswith("running_mean"):
                        value.normal_(0, 0.1)
                    elif key.endswith("running_var"):
                        value.uniform_(0.5, 1.5)
                    elif key.endswith("bias"):
                        value.normal_(0, 0.02)
                    elif key.endswith("weight") and value.ndim == 1:
                        value.uniform_(0.8, 1.2)
                    elif key.endswith(("cls_token", "class_token", "heads.head.weight", "head.weight")):
                        value.normal_(0, 0.02)
            draw = np.random.default_rng(1)
            if "context" in keys:
                x = draw.integers(0, 1000, size=(2, keys["context"])).astype(np.int32)
                inputs = torch.tensor(x.astype(np.int64))
            else:
                size = 299 if network == "inception-v3" else 224
                x = draw.uniform(-1, 1, size=(2, size, size, 3)).astype(np.float32)
                inputs = torch.tensor(x.transpose(0, 3, 1, 2).copy())
            with torch.no_grad():
                wanted = model(inputs)
            wanted = getattr(wanted, "logits", wanted)
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder)
                save = getattr(model, "save_pretrained", None) if name.startswith("transformers") else None
                if save:
                    save(folder / "saved", safe_serialization=True)
                    (folder / "saved" / "model.safetensors").rename(folder / "weights.safetensors")
                else:
                    tensors = {key: value.contiguous() for key, value in model.state_dict().items()}
                    save_file(tensors, folder / "weights.safetensors")
                configured(folder, network, keys)
                return relative(predicted(program, folder, x), wanted.numpy()), network
        results.add(name, work)
    return results.missed


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.exit(__doc__)
    program, wanted, names = Path(arguments[0]).resolve(), arguments[1:2], arguments[2:]
    if os.environ.get(INSIDE):
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        sys.exit(globals()[wanted[0].replace("-", "_")](program, names) > 0)
    os.environ[BUILD] = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
    failed = False
    with tempfile.NamedTemporaryFile() as records:
        os.environ.setdefault(RECORDS, records.name)
        for check in CHECKS if not wanted else [check for check in wanted if check != "tables"]:
            command = [environment(CHECKS[check]), __file__, program, check, *names]
            failed |= subprocess.run(command, env={**os.environ, INSIDE: "1"}).returncode != 0
        if not wanted or "tables" in wanted:
            networks = [entry["name"] for entry in json.loads(run(program, "zoo", "--json"))]
            models_tables.write(recorded(), networks, update=bool(os.environ.get("UPDATE_DOCS")))
    sys.exit(failed)


if __name__ == "__main__":
    main()
