#!/usr/bin/env python3
"""Runs the node tests that the Python package `onnx` ships on imported graphs, and writes what came of them to docs/onnx.md.

    pip install onnx==1.22.0
    python tools/onnx_node_check.py                 all cases; the tables of docs/onnx.md
    python tools/onnx_node_check.py --archive       also the selection that `cargo test` runs (tests/references/onnx/nodes.zip)

Cases in scope have inputs and outputs of float32, int64 and bool; those of other types are run too and counted apart. A case passes if
no output is off by more than 1e-3 of its largest magnitude, the tolerance of ONNX' own runner.
"""

import argparse
import collections
import io
import json
import os
import re
import subprocess
import tempfile
import zipfile
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs/onnx.md"
ARCHIVE = ROOT / "crates/plimsoll/tests/references/onnx/nodes.zip"
IN_SCOPE = {onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL}
# Bytes of a case and of all cases in the archive, before compression.
LARGEST_CASE, LARGEST_ARCHIVE = 2_000, 90_000


def describe(model):
    """The operators of a case, and whether it has only types in scope."""
    types = set()
    for value in [*model.graph.input, *model.graph.output]:
        kind = value.type.WhichOneof("value")
        types.add(value.type.tensor_type.elem_type if kind == "tensor_type" else kind)
    own = all(not node.domain for node in model.graph.node)
    return sorted({node.op_type for node in model.graph.node}), types <= IN_SCOPE and own


def run(folder):
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results.json"
        environment = {**os.environ, "ONNX_NODE_TESTS": str(folder), "ONNX_NODE_RESULTS": str(results)}
        command = ["cargo", "test", "-q", "-p", "plimsoll", "--lib", "operators_compute_what_onnx_says"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        return json.loads(results.read_text())


def write_archive(folder, passed):
    """The smallest case of every operator."""
    chosen, total = [], 0
    by_operator = collections.defaultdict(list)
    for case, operators in passed:
        files = [folder / case / "model.onnx", *sorted((folder / case / "test_data_set_0").glob("*.pb"))]
        size = sum(file.stat().st_size for file in files)
        if len(operators) == 1 and size <= LARGEST_CASE:
            by_operator[operators[0]].append((size, case, files))
    for operator in sorted(by_operator):
        smallest = min(by_operator[operator])
        if total + smallest[0] <= LARGEST_ARCHIVE:
            total += smallest[0]
            chosen.append(smallest)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for _, case, files in sorted(chosen, key=lambda entry: entry[1]):
            for file in files:
                member = zipfile.ZipInfo(f"{case}/{file.name}", (2020, 1, 1, 0, 0, 0))
                member.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(member, file.read_bytes())
    ARCHIVE.write_bytes(out.getvalue())
    print(f"{len(chosen)} cases in {ARCHIVE.relative_to(ROOT)}, {len(out.getvalue()):,} bytes")


def reason(text):
    """The reason without names of nodes, once per operator."""
    parts = sorted({re.sub(r"^`[^`]*` \((\w+)\): ", r"`\1`: ", part) for part in text.split("; `")})
    parts = sorted({re.sub(r"^[^`(]*\w*` \((\w+)\): ", r"`\1`: ", part) for part in parts})
    return "; ".join(parts)


def tables(results, described):
    in_scope = [result for result in results if described[result["case"]][1]]
    others = [result for result in results if not described[result["case"]][1]]
    passed = [result for result in in_scope if result["outcome"] == "same"]
    left = collections.defaultdict(list)
    for result in in_scope:
        if result["outcome"] != "same":
            left[(result["outcome"], reason(result["reason"]))].append(result["case"])
    close = sum(result["difference"] <= 1e-4 for result in passed)
    lines = [
        f"onnx {onnx.__version__} ships {len(results):,} cases. {len(in_scope):,} have inputs and outputs of float32, int64 and bool only.",
        "",
        "| cases | passed | left out | wrong |",
        "|---|---|---|---|",
    ]
    for name, group in [("float32, int64 and bool", in_scope), ("other types", others)]:
        count = collections.Counter(result["outcome"] for result in group)
        lines.append(f"| {name} | {count['same']:,} | {count['refused']:,} | {count['wrong']:,} |")
    lines += ["", f"{close:,} of the {len(passed):,} are within 1e-4.", "", "| left out, of float32, int64 and bool | cases | such as |", "|---|---|---|"]
    for (outcome, why), cases in sorted(left.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        mark = "**wrong**: " if outcome == "wrong" else ""
        lines.append(f"| {mark}{why} | {len(cases)} | `{cases[0]}` |")
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, default=Path(onnx.__file__).parent / "backend/test/data/node")
    arguments.add_argument("--archive", action="store_true")
    arguments.add_argument("--results", type=Path, help="outcomes of a run with ONNX_NODE_RESULTS, in place of a new one")
    arguments = arguments.parse_args()
    if not arguments.data.is_dir():
        raise SystemExit(f"{arguments.data} does not exist; onnx 1.22.0 is the last version that ships the cases")
    described = {path.name: describe(onnx.load(path / "model.onnx")) for path in sorted(arguments.data.iterdir())}
    results = json.loads(arguments.results.read_text()) if arguments.results else run(arguments.data)
    passed = [(result["case"], described[result["case"]][0]) for result in results if result["outcome"] == "same" and described[result["case"]][1]]
    if arguments.archive:
        write_archive(arguments.data, passed)
    text = tables(results, described)
    before, after = DOCS.read_text().split("<!-- node tests -->\n", 1)
    DOCS.write_text(before + "<!-- node tests -->\n" + text + "<!-- end of node tests -->" + after.split("<!-- end of node tests -->", 1)[1])
    print(text)


if __name__ == "__main__":
    main()
