#!/usr/bin/env python3
"""Rates of reading tables on one core, beside polars and pandas: CSV of numbers, CSV with categories, Parquet, text.

    python rivals/table_rates.py target/release/plimsoll [MEGABYTES]      # needs pandas, polars, pyarrow

Plimsoll reads batches of f32 within 64 MiB by one thread (`data bench`); polars and pandas read whole frames, with one thread.
The file is in the page cache. The smallest time of three rounds counts, and rounds of all programs are interleaved.
"""
import json, os, subprocess, sys, tempfile, time
os.environ["POLARS_MAX_THREADS"] = "1"
import numpy as np, pandas as pd, polars as pl

def main():
    plimsoll, megabytes = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100
    rng = np.random.default_rng(7)
    with tempfile.TemporaryDirectory() as folder:
        at = lambda name: os.path.join(folder, name)
        rows = megabytes * 11_000
        numeric = pd.DataFrame({f"n{i}": rng.normal(size=rows).round(4) for i in range(11)})
        numeric["y"] = rng.integers(0, 2, rows)
        numeric.to_csv(at("numeric.csv"), index=False)
        numeric.astype({f"n{i}": "float64" for i in range(11)}).to_parquet(at("numeric.parquet"), compression="snappy")
        words = np.array(["red", "green", "blue", "violet", "orange", "white", "black", "umber"])
        mixed = pd.DataFrame({f"n{i}": rng.normal(size=rows).round(4) for i in range(4)} | {f"c{i}": words[rng.integers(0, 8, rows)] for i in range(6)})
        mixed["y"] = numeric["y"]
        mixed.to_csv(at("mixed.csv"), index=False)
        vocabulary = np.array([f"word{i}" for i in range(5000)])
        lines = [" ".join(vocabulary[row]) for row in rng.zipf(1.3, size=(megabytes * 6000, 25)) % 5000]
        pd.DataFrame({"line": lines, "y": rng.integers(0, 2, len(lines))}).to_csv(at("text.csv"), index=False)
        keys = {"text": '\ncolumns = { line = { type = "text", max_tokens = 4000, length = 32 } }'}
        print("| table | size | Plimsoll | polars | pandas |\n|---|---|---|---|---|")
        for name, file in [("CSV, numbers", "numeric.csv"), ("CSV, categories", "mixed.csv"), ("Parquet, f64, Snappy", "numeric.parquet"), ("CSV, text to tokens", "text.csv")]:
            source = "parquet" if file.endswith("parquet") else "csv"
            config = at("bench.toml")
            open(config, "w").write(f'[data]\nsource = "{source}"\npath = "{file}"\ntarget = "y"\nbatch = 1024\nparallelism = 1\n'
                                    f'ignore_errors = 1{keys.get(file[:-4], "")}\n[budget]\nhost = "64MiB"\n')
            size = os.path.getsize(at(file)) / 1e6
            best = {}
            def took(program, seconds):
                best[program] = min(best.get(program, 1e9), seconds)
            for _ in range(3):
                done = subprocess.run(["taskset", "-c", "0", plimsoll, "data", "bench", config, "--epochs", "1", "--json"], capture_output=True, text=True)
                if done.returncode:
                    sys.exit(done.stderr)
                took("plimsoll", json.loads(done.stdout)["epochs"][-1]["seconds"])
                if "text" in file:
                    continue
                start = time.perf_counter()
                pl.read_csv(at(file)) if source == "csv" else pl.read_parquet(at(file), use_pyarrow=False)
                took("polars", time.perf_counter() - start)
                start = time.perf_counter()
                pd.read_csv(at(file)) if source == "csv" else pd.read_parquet(at(file))
                took("pandas", time.perf_counter() - start)
            rate = lambda program: f"{size / best[program]:.0f} MB/s" if program in best else "–"
            print(f"| {name} | {size:.0f} MB | {rate('plimsoll')} | {rate('polars')} | {rate('pandas')} |", flush=True)

main()
