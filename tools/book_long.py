#!/usr/bin/env python3
"""Runs the programs of the book that no test runs, and records what they took in docs/recorded.md.

    tools/book_data.py FOLDER
    tools/book_long.py FOLDER --plimsoll target/release/plimsoll --python PYTHON [--marks keras,long] [--only arrays] [PAGE …]

A test runs the commands of blocks without a mark on a few rows. This runs, in FOLDER, blocks with one of the given marks, and with the mark
`plain` those without one: commands after `$ `, and programs in Python whose first line is `# NAME.py`, with PYTHON, which needs TensorFlow
(and PyTorch for its page). Blocks of TOML are written to the file that their first line names. `--only` selects commands by a word in them.
Needs GNU time, whose figures for peak resident memory and processor time are recorded.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
record = os.path.join(root, "docs", "recorded.md")
parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("pages", nargs="*", default=["docs/coming-from-keras.md"])
parser.add_argument("--plimsoll", default="target/release/plimsoll")
parser.add_argument("--python", default=sys.executable)
parser.add_argument("--marks", default="keras,long,plain")
parser.add_argument("--only", default="")
arguments = parser.parse_args()
marks = set(arguments.marks.split(","))
words = [word for word in arguments.only.split(",") if word]


def blocks(text):
    """Language and marks, and the text, of every fenced block."""
    return [(info.split(), body) for info, body in re.findall(r"^ *```([^\n]*)\n(.*?)^ *```", text, re.S | re.M) if info]


def commands(body):
    return [line[2:].split(" # ")[0].strip() for line in body.splitlines() if line.startswith("$ ")]


def measure(command, environment):
    """Runs a command below GNU time: the system would count the memory of this script, from which the command is forked, otherwise."""
    log, used = (os.path.join(arguments.folder, f"{name}-{os.getpid()}") for name in ("log", "used"))
    with open(log, "wb") as out:
        timed = ["time", "-q", "-o", used, "-f", "%e %U %S %M", "sh", "-c", f"exec {command}"]
        code = subprocess.run(timed, cwd=arguments.folder, stdout=out, stderr=subprocess.STDOUT, env=environment).returncode
    clock, user, system, peak = (float(number) for number in open(used).read().split())
    lines = open(log, errors="replace").read().strip().splitlines()
    telling = [line for line in lines if re.search("error|loss|batch ", line)] or lines or [""]
    shown = re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m|\x08", "", telling[-1])).strip()
    return [str(code), f"{clock:.1f} s", f"{user + system:.1f} s", f"{peak / 1024:,.0f} MiB", shown[:80].replace("|", "\\|")]


def known():
    """What was recorded before, by page and command."""
    rows, page = {}, None
    for line in open(record).read().splitlines() if os.path.exists(record) else []:
        if line.startswith("## "):
            page = line[3:].strip("`")
        elif line.startswith("| `"):
            name, *cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            rows[page, name.strip("`")] = cells
    return rows


tools = os.path.join(arguments.folder, "bin")
shutil.rmtree(tools, ignore_errors=True)
os.makedirs(tools)
os.symlink(os.path.abspath(arguments.plimsoll), os.path.join(tools, "plimsoll"))
environment = {**os.environ, "PATH": f"{os.path.abspath(tools)}:{os.environ['PATH']}", "TF_CPP_MIN_LOG_LEVEL": "3"}
rows = known()
for page in arguments.pages:
    for (language, *own), body in blocks(open(os.path.join(root, page)).read()):
        name = re.match(r"# (\S+\.(?:toml|py))\n", body)
        if name and language in ("toml", "python"):
            open(os.path.join(arguments.folder, name[1]), "w").write(body)
        if not (set(own) or {"plain"}) & marks:
            continue
        ran = commands(body) if language == "console" else [f"python {name[1]}"] if language == "python" and name else []
        for command in ran:
            if words and not any(word in command for word in words):
                continue
            out = re.search(r"--out (runs/\S+)", command)
            if out:
                shutil.rmtree(os.path.join(arguments.folder, out[1]), ignore_errors=True)
            line = re.sub(r"^python ", f"{arguments.python} ", command)
            rows[page, command] = measure(line, environment)
            print(command, *rows[page, command], sep=" | ", flush=True)

with open(record, "w") as file:
    file.write(
        "# Programs of the book, measured\n\n"
        "What the commands of the book took that no test runs, or that a test runs on a few rows only: written by\n"
        "`tools/book_long.py`, with the data of `tools/book_data.py`. *Clock* includes waiting for other programs on the same\n"
        "machine; *processor* is the time of all cores together. *Peak* is resident memory of the process as the system counts\n"
        "it.\n"
    )
    for page in sorted({page for page, _ in rows}):
        file.write(f"\n## `{page}`\n\n| command | status | clock | processor | peak | last line |\n|---|---|---|---|---|---|\n")
        for (of, command), cells in rows.items():
            if of == page:
                file.write(f"| `{command}` | {' | '.join(cells)} |\n")
