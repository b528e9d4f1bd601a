#!/usr/bin/env python3
"""Compares the ONNX exports of the zoo with tract, an inference engine in Rust.

    tools/tract_check.py target/release/plimsoll              all networks, in opset 18
    tools/tract_check.py target/release/plimsoll lenet5 gru

Builds a small program with tract (TRACT below) outside of the repository, in $MODELS_CHECK_VENVS or the user's cache folder. A line per
network: max|difference| / max|reference|, or why tract does not load or run the file. With UPDATE_DOCS=1, a run over all networks writes
the table of docs/onnx.md. The exit status is 1 if a network that tract runs differs by more than 1e-4.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import models_check

TRACT = "0.23.9"
AIM = 1e-4
INSIDE = "TRACT_CHECK_INSIDE"
MANIFEST = f"""[package]
name = "tract-check"
version = "0.0.0"
edition = "2024"

[dependencies]
tract-onnx = "={TRACT}"
"""
# Arguments: the model, the input as raw numbers, `f32` or `i32`, the output, the shape.
PROGRAM = """use std::fs;
use tract_onnx::prelude::*;

fn main() -> TractResult<()> {
    let args: Vec<String> = std::env::args().collect();
    let shape: Vec<usize> = args[5..].iter().map(|dim| dim.parse()).collect::<Result<_, _>>()?;
    let dtype = if args[3] == "i32" { i32::datum_type() } else { f32::datum_type() };
    let input = unsafe { Tensor::from_raw_dt(dtype, &shape, &fs::read(&args[2])?)? };
    let model = tract_onnx::onnx().model_for_path(&args[1])?;
    let model = model.with_input_fact(0, InferenceFact::dt_shape(dtype, &shape))?.into_optimized()?.into_runnable()?;
    let outputs = model.run(tvec!(input.into()))?;
    let output = outputs[0].cast_to::<f32>()?;
    fs::write(&args[4], unsafe { output.as_slice_unchecked::<f32>() }.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}
"""


def checker():
    """The program, built on first use."""
    root = Path(os.environ.get("MODELS_CHECK_VENVS") or Path.home() / ".cache" / "plimsoll-models-check") / f"tract-{TRACT}"
    (root / "src").mkdir(parents=True, exist_ok=True)
    for name, text in (("Cargo.toml", MANIFEST), ("src/main.rs", PROGRAM)):
        if not (root / name).exists() or (root / name).read_text() != text:
            (root / name).write_text(text)
    subprocess.run(["cargo", "build", "--quiet", "--release", "--target-dir", root / "target"], cwd=root, check=True)
    return root / "target" / "release" / "tract-check"


def reason(said):
    """The innermost cause that tract names, in one line."""
    lines = [line.strip() for line in said.strip().splitlines() if line.strip()]
    causes = [line for line in lines if line[:1].isdigit() and ": " in line] or lines
    return (causes[-1] if causes else "no reason given")[:160].replace("|", "/")


def compare(program, names):
    import numpy as np

    tract, rows, missed = os.environ[INSIDE], [], 0
    for name, shape, keys in models_check.zoo(program, names):
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            x = models_check.random_run(program, folder, name, shape, keys)
            wanted = models_check.predicted(program, folder, x)
            models_check.run(program, "export", folder, "--to", folder / "model.onnx", "--rows", 0)
            (folder / "x.bin").write_bytes(x.tobytes())
            kind = "i32" if x.dtype == np.int32 else "f32"
            command = [tract, folder / "model.onnx", folder / "x.bin", kind, folder / "y.bin", *map(str, x.shape)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = reason(done.stderr)
                rows.append((name, "–", said))
            else:
                difference = models_check.relative(np.frombuffer((folder / "y.bin").read_bytes(), np.float32), wanted)
                missed += not difference <= AIM
                rows.append((name, f"{difference:.0e}".replace("e-0", "e-"), ""))
        print(f"{name:20} {rows[-1][1]:8} {rows[-1][2]}", flush=True)
    if os.environ.get("UPDATE_DOCS") and not names:
        lines = [f"tract {TRACT}, opset 18:", "", "| network | difference | why not |", "|---|---|---|"]
        lines += [f"| `{name}` | {difference} | {why} |" for name, difference, why in rows]
        document = Path(__file__).parent.parent / "docs" / "onnx.md"
        before, rest = document.read_text().split("<!-- tract -->\n")
        after = rest.split("<!-- end of tract -->")[1]
        document.write_text(before + "<!-- tract -->\n" + "\n".join(lines) + "\n<!-- end of tract -->" + after)
    return missed


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    program, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    if os.environ.get(INSIDE):
        sys.exit(compare(program, names) > 0)
    inside = {**os.environ, INSIDE: str(checker()), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.exit(subprocess.run([models_check.environment("onnx"), __file__, *sys.argv[1:]], env=inside).returncode)


if __name__ == "__main__":
    main()
