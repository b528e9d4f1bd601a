#!/usr/bin/env python3
"""Kills random ranks of a data-parallel run with SIGKILL at random moments, and resumes it on other numbers of ranks.

    tools/rank_kills.py target/release/plimsoll [--kills 20] [--seed 1] [--reproducible] [--shard optimizer]

Prints how long the slowest job took to end, and compares the weights with those of one process that was not interrupted:
with --reproducible bit for bit, otherwise by their largest difference. Uses the mpirun of PATH, and PLIMSOLL_MPI where that
is set.
"""

import argparse
import json
import os
import random
import signal
import struct
import subprocess
import tempfile
import time
from pathlib import Path

RANK = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
RANKS = (4, 2, 3)

# A convex problem: what differs by rounding does not grow.
CONFIGURATION = """
[data]
source = "digits"
shuffle = true
map = [{ op = "scale", by = 0.0625 }]
[model]
layers = [{ type = "flatten" }, { type = "dense", units = 10 }]
[train]
batch = 32
optimizer = { type = "sgd", lr = 0.01, momentum = 0.9 }
"""

# Whatever the network, bits are the same.
REPRODUCIBLE = """
[data]
source = "digits"
shuffle = true
map = [{ op = "scale", by = 0.0625 }]
[model]
layers = [
    { type = "flatten" },
    { type = "dense", units = 32, activation = "relu" },
    { type = "dropout", rate = 0.2 },
    { type = "dense", units = 10 },
]
[train]
batch = 48
optimizer = { type = "adam", lr = 0.003 }
clip = { global_norm = 1.0 }
[parallel]
reproducible = true
"""


def processes(folder, program):
    """The ranks that run in a folder: their number and process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "exe").resolve() != program or (entry / "cwd").resolve() != folder:
                continue
            pairs = (pair.split("=", 1) for pair in (entry / "environ").read_text().split("\0") if "=" in pair)
            rank = next((value for name, value in pairs if name in RANK), None)
        except OSError:
            continue
        if rank is not None:
            found[int(rank)] = int(entry.name)
    return found


def weights(folder):
    """The numbers of a file of weights."""
    data = (folder / "weights.safetensors").read_bytes()
    header = struct.unpack("<Q", data[:8])[0]
    return struct.unpack(f"<{(len(data) - 8 - header) // 4}f", data[8 + header :])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reproducible", action="store_true")
    parser.add_argument("--shard", default="none")
    args = parser.parse_args()
    program, draw = args.program.resolve(), random.Random(args.seed)
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    environment.update(OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "run.toml").write_text(REPRODUCIBLE if args.reproducible else CONFIGURATION)
        run = [str(program), "train", "run.toml", "--quiet", "--no-calibrate", "--threads", "1", "--seed", "3"]
        run += ["--epochs", str(args.epochs), "--set", "checkpoint.every_steps=7", "--set", f"parallel.shard={args.shard}"]
        subprocess.run([*run, "--out", "alone"], cwd=folder, check=True)
        slowest, killed = 0.0, 0
        for turn in range(1000):
            ranks = RANKS[turn % len(RANKS)]
            resume = ["--resume"] if (folder / "ranks/config.toml").exists() else []
            command = ["mpirun", "-np", str(ranks), *run, "--out", "ranks", *resume]
            job = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            if killed < args.kills:
                time.sleep(draw.uniform(0.2, 1.5))
                victims = processes(folder, program)
                if victims and job.poll() is None:
                    rank = draw.choice(sorted(victims))
                    start = time.monotonic()
                    os.kill(victims[rank], signal.SIGKILL)
                    job.communicate()
                    slowest, killed = max(slowest, time.monotonic() - start), killed + 1
                    continue
            _, error = job.communicate()
            if job.returncode == 0:
                break
            raise SystemExit(f"{' '.join(command)}: {error.decode()}")
        result = {"kills": killed, "slowest_end_s": round(slowest, 2)}
        if args.reproducible:
            alone, ranks = ((folder / name / "weights.safetensors").read_bytes() for name in ("alone", "ranks"))
            result["bit_equal"] = alone == ranks
        difference = max(abs(a - b) for a, b in zip(weights(folder / "alone"), weights(folder / "ranks"), strict=True))
        print(json.dumps({**result, "largest_difference": difference}))
        if not result.get("bit_equal", True):
            raise SystemExit("the weights have other bits than those of one process")


if __name__ == "__main__":
    main()
