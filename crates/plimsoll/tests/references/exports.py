#!/usr/bin/env python3
"""Writes exports.json: what ONNX Runtime computes with the exports of the models in keras/, compared with Keras' own outputs.

    python exports.py target/debug/plimsoll       (pip install onnx onnxruntime numpy)

The checksum of each file is stored, so that a test can tell that it still writes exactly the files that were compared.
"""

import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

HERE = Path(__file__).parent


def main():
    program = Path(sys.argv[1]).resolve()
    rows = []
    for case in json.loads((HERE / "keras" / "models.json").read_text()):
        for opset in (18, 23):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                command = [program, "convert", HERE / "keras" / case["file"], path, "--rows", "0", "--opset", str(opset)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{case['file']}: {done.stderr}")
                onnx.checker.check_model(str(path), full_check=True)
                session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
                feeds = {}
                for given, stored in zip(session.get_inputs(), case["inputs"]):
                    dtype = np.int32 if "int32" in given.type else np.float32
                    feeds[given.name] = np.array(stored["data"], dtype).reshape(stored["shape"])
                worst = 0
                for found, wanted in zip(session.run(None, feeds), case["outputs"], strict=True):
                    wanted = np.array(wanted["data"]).reshape(wanted["shape"])
                    worst = max(worst, float(np.abs(found - wanted).max() / np.abs(wanted).max()))
                crc = f"{zlib.crc32(path.read_bytes()):08x}"
                print(f"{case['file']:18} opset {opset} {worst:.1e} {crc}")
                rows.append({"file": case["file"], "opset": opset, "crc32": crc, "difference": float(f"{worst:.1e}")})
    (HERE / "exports.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
