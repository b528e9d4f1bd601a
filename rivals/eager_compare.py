#!/usr/bin/env python3
"""Eager training steps of Plimsoll and PyTorch side by side, in turns.

    cargo bench -p plimsoll --bench eager --no-run
    python rivals/eager_compare.py BENCH PYTHON [--rounds 3] [NETWORK ...]

BENCH is the bench program that the first command names, PYTHON an interpreter with PyTorch. Every program runs by
itself, on THREADS threads (1 by default), in turns. The medians of the rounds are printed as a table: milliseconds of a
step, on the wall and of all threads, and by how many MiB the peak of the process grew.
"""
import argparse
import os
import statistics
import subprocess
from pathlib import Path

NETWORKS = ["mlp", "cifar-cnn", "char-gpt", "resnet18"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("networks", nargs="*")
    asked = parser.parse_args()
    torch = [asked.python, str(Path(__file__).with_name("eager_torch.py"))]
    programs = {"plimsoll": [asked.bench], "pytorch": torch}
    threads = os.environ.get("THREADS", "1")
    environment = dict(os.environ, THREADS=threads, OMP_NUM_THREADS=threads)
    print("| network | library | step | CPU time | peak |\n|---|---|---|---|---|")
    for network in asked.networks or NETWORKS:
        found = {}
        for _ in range(asked.rounds):
            for library, program in programs.items():
                run = subprocess.run([*program, "step", network], capture_output=True, text=True, env=environment)
                if run.returncode != 0:
                    raise SystemExit(f"{' '.join(program)} step {network} failed:\n{run.stderr[-2000:]}")
                words = run.stdout.split()
                found.setdefault(library, []).append((float(words[2]), float(words[4]), float(words[6])))
        for library, rows in found.items():
            wall, cpu, peak = (statistics.median(column) for column in zip(*rows))
            print(f"| {network} | {library} | {wall:.2f} ms | {cpu:.2f} ms | {peak:.0f} MiB |", flush=True)


if __name__ == "__main__":
    main()
