#!/usr/bin/env python3
"""Trains networks of the zoo on 1, 2, 4, 8 and 16 ranks of this machine, and compares their weights with those of one process.

    tools/rank_bits.py target/release/plimsoll [--network lstm] [--ranks 1,2,4]

Each network is trained on random rows with `parallel.reproducible`, and the weights have to be equal bit for bit; without it,
their largest difference is printed. Uses the mpirun of PATH, and PLIMSOLL_MPI where that is set.
"""

import argparse
import json
import os
import struct
import subprocess
import tempfile
from pathlib import Path

# Rows of an epoch are no multiple of the batch.
NETWORKS = {
    "digits": ["--batch", "48"],
    "cifar-cnn": ["--zoo", "cifar-cnn", "--batch", "16", "--set", "data.rows=40"],
    "lstm": ["--zoo", "lstm", "--batch", "16", "--set", "data.rows=72"],
    "char-gpt": ["--zoo", "char-gpt", "--batch", "16", "--set", "data.rows=24"],
}


def weights(folder):
    """The bytes of the tensors of a file of weights."""
    data = (folder / "weights.safetensors").read_bytes()
    return data[8 + struct.unpack("<Q", data[:8])[0] :]


def difference(one, many):
    """The largest difference between numbers."""
    count = len(one) // 4
    pairs = zip(struct.unpack(f"<{count}f", one), struct.unpack(f"<{count}f", many), strict=True)
    return max(abs(a - b) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--network", choices=NETWORKS, action="append")
    parser.add_argument("--ranks", default="1,2,4,8,16")
    args = parser.parse_args()
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    environment.update(OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
    environment.update(OMPI_MCA_mpi_yield_when_idle="1")
    equal = True
    for network in args.network or NETWORKS:
        for reproducible in ["true", "false"]:
            run = [str(args.program.resolve()), "train", *NETWORKS[network], "--epochs", "1", "--quiet", "--no-calibrate"]
            run += ["--threads", "1", "--seed", "3", "--set", f"parallel.reproducible={reproducible}", "--json"]
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                subprocess.run([*run, "--out", "one"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
                for ranks in args.ranks.split(","):
                    command = ["mpirun", "-np", ranks, *run, "--out", f"on-{ranks}"]
                    job = subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE)
                    report = json.loads(job.stdout)
                    one, many = weights(folder / "one"), weights(folder / f"on-{ranks}")
                    result = {"network": network, "ranks": int(ranks), "reproducible": reproducible == "true"}
                    result.update({"bit_equal": one == many, "largest_difference": difference(one, many)})
                    result.update({key: report[key] for key in ("planned_bytes", "measured_peak_rss_bytes")})
                    print(json.dumps(result), flush=True)
                    equal &= result["bit_equal"] or not result["reproducible"]
    if not equal:
        raise SystemExit("weights have other bits than those of one process")


if __name__ == "__main__":
    main()
