#!/usr/bin/env python3
"""Rates of reading tables on one core, beside polars and pandas: CSV of numbers, CSV with categories, Parquet, Arrow, text.

    python rivals/table_rates.py [MEGABYTES] [BENCH]      # in the repository; needs pandas, polars, pyarrow

`indices.parquet` has the columns of `categories.parquet`, of which Plimsoll makes indices instead of vectors with a one: polars
keeps views of the texts, which are as many values.

BENCH is the program that `cargo bench -p plimsoll-data --bench tables --no-run` names; it is built if none is given.

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
    mixed.to_parquet(at("indices.parquet"), compression="snappy")
    return ["numbers.csv", "categories.csv", "numbers.parquet", "dictionaries.parquet", "categories.parquet", "indices.parquet", "numbers.feather", "text.csv"]

def seconds(read):
    begun = time.process_time()
    read()
    return time.process_time() - begun

READERS = {"csv": (pl.read_csv, pd.read_csv), "parquet": (pl.read_parquet, pd.read_parquet), "feather": (pl.read_ipc, pd.read_feather)}

def main():
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    with tempfile.TemporaryDirectory() as folder:
        files = write(folder, megabytes)
        path = lambda file: os.path.join(folder, file)
        rates = {file: {} for file in files}
        def add(file, what, rate):
            rates[file][what] = max(rates[file].get(what, 0), rate)
        bench = sys.argv[2:] or ["cargo", "bench", "-q", "-p", "plimsoll-data", "--bench", "tables", "--"]
        columns = {"text.csv": ":line", "indices.parquet": ":int=c0,c1,c2,c3,c4,c5"}
        bench += [path(file) + columns.get(file, "") for file in files]
        for _ in range(ROUNDS):
            lines = subprocess.run(bench, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
            found = [re.search(r"opened at (\S+) MB/s, read at (\S+) MB/s", line) for line in lines]
            for file, rate in zip(files, filter(None, found), strict=True):
                add(file, "opening", float(rate[1]))
                add(file, "Plimsoll", float(rate[2]))
            for file in files:
                if file != "text.csv":
                    for program, read in zip(["polars", "pandas"], READERS[file.split(".")[1]]):
                        add(file, program, os.path.getsize(path(file)) / 1e6 / seconds(lambda: read(path(file))))
        print("| file | size | Plimsoll | of polars | polars | pandas | opening in Plimsoll |\n|---|---|---|---|---|---|---|")
        for file in files:
            rate = lambda what: f"{rates[file][what]:,.0f} MB/s" if rates[file].get(what, float("inf")) < float("inf") else "–"
            ratio = f"{rates[file]['Plimsoll'] / rates[file]['polars']:.2f}" if "polars" in rates[file] else "–"
            size = os.path.getsize(path(file)) / 1e6
            print(f"| {file} | {size:.0f} MB | {rate('Plimsoll')} | {ratio} | {rate('polars')} | {rate('pandas')} | {rate('opening')} |", flush=True)

main()
