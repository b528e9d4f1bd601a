#!/usr/bin/env python3
"""Rates of reading tables on one core, beside polars and pandas: CSV of numbers, CSV with categories, Parquet, Arrow, text.

    python rivals/table_rates.py [MEGABYTES]      # in the repository; needs pandas, polars, pyarrow

Plimsoll reads batches of f32 within 64 MiB by one thread (`cargo bench -p plimsoll-data --bench tables`); polars and pandas read
whole frames, with one thread. Files are in the page cache. Rates are those of CPU seconds, so that other programs disturb them
less; rounds are interleaved, and the best of each program counts.
"""
import os, re, subprocess, sys, tempfile, time
os.environ["POLARS_MAX_THREADS"] = "1"
import numpy as np, pandas as pd, polars as pl

ROUNDS = 4

def write(folder, megabytes):
    at = lambda name: os.path.join(folder, name)
    rng, rows = np.random.default_rng(7), megabytes * 11_000
    labels = rng.integers(0, 2, rows)
    exact = pd.DataFrame({f"n{i}": rng.normal(size=rows) for i in range(11)} | {"y": labels})
    exact.to_parquet(at("numbers.parquet"), compression="snappy")
    exact.to_feather(at("numbers.feather"), compression="lz4")
    rounded = exact.round(4)
    rounded.to_csv(at("numbers.csv"), index=False)
    rounded.to_parquet(at("dictionaries.parquet"), compression="snappy")
    words = np.array(["red", "green", "blue", "violet", "orange", "white", "black", "umber"])
    mixed = pd.DataFrame({f"n{i}": rounded[f"n{i}"] for i in range(4)} | {f"c{i}": words[rng.integers(0, 8, rows)] for i in range(6)} | {"y": labels})
    mixed.to_csv(at("categories.csv"), index=False)
    mixed.to_parquet(at("categories.parquet"), compression="snappy")
    vocabulary = np.array([f"word{i}" for i in range(5000)])
    lines = [" ".join(vocabulary[row]) for row in rng.zipf(1.3, size=(megabytes * 6000, 25)) % 5000]
    pd.DataFrame({"line": lines, "y": rng.integers(0, 2, len(lines))}).to_csv(at("text.csv"), index=False)
    return ["numbers.csv", "categories.csv", "numbers.parquet", "dictionaries.parquet", "categories.parquet", "numbers.feather", "text.csv"]

def seconds(read):
    begun = time.process_time()
    read()
    return time.process_time() - begun

READERS = {"csv": (pl.read_csv, pd.read_csv), "parquet": (pl.read_parquet, pd.read_parquet), "feather": (pl.read_ipc, pd.read_feather)}

def main():
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        files = write(folder, megabytes)
        rates = {file: {} for file in files}
        def add(file, program, rate):
            rates[file][program] = max(rates[file].get(program, 0), rate)
        for _ in range(ROUNDS):
            for file in files:
                path = os.path.join(folder, file)
                column = ":line" if file == "text.csv" else ""
                bench = ["cargo", "bench", "-q", "-p", "plimsoll-data", "--bench", "tables", "--", path + column]
                out = subprocess.run(bench, capture_output=True, text=True, check=True).stdout
                add(file, "Plimsoll", float(re.search(r"read at (\d+) MB/s", out)[1]))
                for program, read in zip(["polars", "pandas"], READERS[file.split(".")[1]]):
                    if file != "text.csv":
                        add(file, program, os.path.getsize(path) / 1e6 / seconds(lambda: read(path)))
        print("| file | size | Plimsoll | polars | pandas |\n|---|---|---|---|---|")
        for file in files:
            rate = lambda program: f"{rates[file][program]:.0f} MB/s" if program in rates[file] else "–"
            size = os.path.getsize(os.path.join(folder, file)) / 1e6
            print(f"| {file} | {size:.0f} MB | {rate('Plimsoll')} | {rate('polars')} | {rate('pandas')} |", flush=True)

main()
