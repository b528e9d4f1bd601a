"""Makes digits.bin from the copy of the digits data that scikit-learn ships.

    pip download --no-deps scikit-learn
    unzip scikit_learn-*.whl sklearn/datasets/data/digits.csv.gz
    python make_digits.py sklearn/datasets/data/digits.csv.gz digits.bin
"""

import gzip
import sys

source, target = sys.argv[1:]
with gzip.open(source, "rt") as lines:
    rows = [[int(float(field)) for field in line.split(",")] for line in lines]

assert len(rows) == 1797
assert all(len(row) == 65 and max(row[:64]) <= 16 and min(row) >= 0 and row[64] <= 9 for row in rows)

with open(target, "wb") as out:
    for row in rows:
        out.write(bytes(row))
