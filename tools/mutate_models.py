#!/usr/bin/env python3
"""Plans damaged model files, and predicts with damaged TFLite files: no panic, no hang, no memory beyond a bound.

    tools/mutate_models.py target/release/plimsoll          1,000 mutations of each format
    tools/mutate_models.py target/release/plimsoll 5000
    tools/mutate_models.py target/release/plimsoll 5000 .tflite    one format

Files are those of the tests, with one to four changes each: bytes, runs of bytes, lengths, cuts. The changes are the same each time.
`plimsoll plan`, and for TFLite files `plimsoll predict`, has to end within 30 s, with an exit status other than 101 (a panic) and 134 (an
abort), and to hold less than 256 MiB.
"""

import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

REFERENCES = Path(__file__).parent.parent / "crates" / "plimsoll" / "tests" / "references"
BOUND = 256 << 20


def sources(suffix):
    return sorted(path for folder in ("keras", "onnx", "tflite") for path in (REFERENCES / folder).glob(f"*{suffix}"))


def mutated(data, draw):
    data = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        # Headers are small and matter most.
        at = draw.randrange(min(len(data), 4096) if draw.random() < 0.3 else len(data))
        kind = draw.randrange(6)
        if kind == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        elif kind == 2:
            data[at:at + 8] = draw.choice((0, 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, len(data))).to_bytes(8, "little")
        elif kind == 3:
            del data[at:at + draw.randint(1, 64)]
        elif kind == 4:
            other = draw.randrange(len(data))
            data[at:at] = data[other:other + draw.randint(1, 64)]
        elif len(data) > 64:
            del data[at:]
        if not data:
            data = bytearray(b"\0")
    return bytes(data)


def run(program, path, source):
    """Exit status, peak of the resident memory, and what was said."""
    command = [program, "plan", path, "--batch", "4", "--host-memory", "64MiB", "--no-calibrate"]
    if path.suffix == ".tflite":
        rows = source.with_name(f"{source.stem}_x.npy")
        command = [program, "predict", path, "--input", rows, "--out", path.with_name("y.npy"), "--host-memory", "64MiB"]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        timer = threading.Timer(30, child.kill)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        said.seek(0)
        return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024, said.read().decode(errors="replace")


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    program, count = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    failed = False
    for suffix in sys.argv[3:] or (".keras", ".h5", ".onnx", ".tflite"):
        draw, ends, most = random.Random(1), Counter(), 0
        files = sources(suffix)
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(count):
                source = draw.choice(files)
                path = Path(folder) / f"model{suffix}"
                path.write_bytes(mutated(source.read_bytes(), draw))
                code, resident, said = run(program, path, source)
                ends["accepted" if code == 0 else "refused" if code in (1, 2, 3) else f"status {code}"] += 1
                most = max(most, resident)
                if code not in (0, 1, 2, 3) or resident > BOUND:
                    failed = True
                    kept = Path(tempfile.gettempdir()) / f"mutated-{source.stem}-{sum(ends.values())}{suffix}"
                    kept.write_bytes(path.read_bytes())
                    print(f"{kept}: status {code}, {resident >> 20} MiB; {said.strip()[-300:]}")
        print(f"{suffix:7} {dict(ends)}, at most {most / 2**20:.0f} MiB resident", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
