#!/usr/bin/env python3
"""The accuracy of TFLite files on folders of images, by LiteRT: one folder per class, images resized to the input and divided by 255.

    tools/tflite_accuracy.py clothing-small/test f32.tflite int8.tflite
    tools/tflite_accuracy.py clothing-small/validation clothing-small/test f32.tflite int8.tflite     all images of both

A line per file: accuracy, bytes, bytes after gzip.
Images are decoded and resized by TensorFlow. The Python environment is that of tools/models_check.py, with ai-edge-litert.
"""

import gzip
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import models_check

models_check.ENVIRONMENTS["tflite-accuracy"] = [*models_check.ENVIRONMENTS["keras"], "ai-edge-litert==2.3.0"]
INSIDE = "TFLITE_ACCURACY_INSIDE"


def images(folder, size):
    """Pixels and class of every image; classes are sorted by name."""
    import tensorflow as tf

    for label, name in enumerate(sorted(path for path in Path(folder).iterdir() if path.is_dir())):
        for path in sorted(name.iterdir()):
            pixels = tf.io.decode_image(path.read_bytes(), channels=3, expand_animations=False)
            yield tf.image.resize(pixels, size).numpy() / 255, label


def accuracy(model, folders):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=model)
    interpreter.allocate_tensors()
    given, result = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    right = count = 0
    for pixels, label in (found for folder in folders for found in images(folder, given["shape"][1:3])):
        interpreter.set_tensor(given["index"], pixels[None].astype("float32"))
        interpreter.invoke()
        right += interpreter.get_tensor(result["index"]).argmax() == label
        count += 1
    return right / count, count


def main():
    if INSIDE not in os.environ:
        quiet = {**os.environ, INSIDE: "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        sys.exit(subprocess.run([models_check.environment("tflite-accuracy"), *sys.argv], env=quiet).returncode)
    folders = [given for given in sys.argv[1:] if Path(given).is_dir()]
    for model in [given for given in sys.argv[1:] if given not in folders]:
        found, count = accuracy(model, folders)
        data = Path(model).read_bytes()
        print(f"{model}: {found:.4f} of {count} images, {len(data)} bytes, {len(gzip.compress(data))} after gzip", flush=True)


if __name__ == "__main__":
    main()
