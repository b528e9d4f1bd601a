"""Pictures per second: Plimsoll, tf.data and PyTorch's DataLoader with the same work, one after the other in one run, as ratios.

    python rivals/images_compare.py FOLDER --plimsoll target/release/plimsoll --tf PYTHON_WITH_TENSORFLOW --torch PYTHON_WITH_TORCH

FOLDER has one folder of JPEGs per class. Decode, bilinear 224 x 224, divided by 255, batches of 64. A round measures each once, so that
a busy machine is busy for all; the best epoch of each counts. Beside it, the time of a core that an image takes, which other programs on
the machine change less than images per second.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import tempfile

CONFIG = """[data]
source = "image_folder"
path = {folder}
shuffle = {{ seed = 7 }}
map = [ {{ op = "decode" }}, {{ op = "resize", size = [224, 224], method = "bilinear" }}, {{ op = "scale", by = 0.00392156862745098 }} ]
batch = 64
prefetch = "auto"
"""

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder")
parser.add_argument("--plimsoll", required=True)
parser.add_argument("--tf")
parser.add_argument("--torch")
parser.add_argument("--rounds", type=int, default=2)
args = parser.parse_args()
here = os.path.dirname(os.path.abspath(__file__))
best, cores = {}, {}


def note(name, rate, core):
    best[name] = max(best.get(name, 0.0), rate)
    cores[name] = min(cores.get(name, core), core)
    print(f"  {name}: {rate:.0f} images/s, {core:.3f} ms of a core each (load {os.getloadavg()[0]:.1f})", flush=True)


def rival(python, script):
    output = subprocess.run([python, os.path.join(here, script), args.folder], capture_output=True, text=True, check=True).stdout
    rates = re.findall(r"^(\w+ )?epoch \d+: (\d+) images/s", output, re.M)
    shares = re.findall(r"^(\w+)\b.*?([0-9.]+) ms of a core", output, re.M)
    return [(name.strip(), float(rate)) for name, rate in rates], [(name, float(share)) for name, share in shares]


def spent():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


with tempfile.TemporaryDirectory() as folder:
    config = os.path.join(folder, "data.toml")
    with open(config, "w") as file:
        file.write(CONFIG.format(folder=json.dumps(os.path.abspath(args.folder))))
    for number in range(args.rounds):
        print(f"round {number + 1}")
        for name, extra in [("plimsoll", []), ("plimsoll in 64 MiB", ["--host-memory", "64MiB"])]:
            command = [args.plimsoll, "data", "bench", config, "--epochs", "2", "--json", *extra]
            before = spent()
            document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            images = sum(epoch["examples"] for epoch in document["epochs"])
            note(name, max(epoch["examples_per_s"] for epoch in document["epochs"]), 1000 * (spent() - before) / images)
        if args.tf:
            rates, shares = rival(args.tf, "images_tfdata.py")
            note("tf.data", max(rate for _, rate in rates), min(share for _, share in shares))
        if args.torch:
            rates, shares = rival(args.torch, "images_torch.py")
            for kind in ["PIL", "torch"]:
                note(f"DataLoader, {kind}", max(rate for name, rate in rates if name == kind), dict(shares)[kind])

print("best of each, and Plimsoll beside it")
for name, rate in best.items():
    times, core = best["plimsoll"] / rate, cores[name] / cores["plimsoll"]
    print(f"  {name:20} {rate:7.0f} images/s   {times:5.2f} x faster   {cores[name]:6.3f} ms of a core   {core:5.2f} x less")
