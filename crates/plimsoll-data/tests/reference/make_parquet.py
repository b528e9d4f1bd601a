"""Writes the small files that tests/parquet.rs reads: python make_parquet.py (needs pyarrow and NumPy)."""
import os
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

here = os.path.dirname(os.path.abspath(__file__))
rows = np.arange(300)
table = pa.table({
    "half": pa.array(rows / 2, pa.float64()),
    "name": pa.array([f"row {row}" for row in rows]),
    "third": pa.array((rows / 3).astype(np.float32)),
    "few": pa.array(rows % 5, pa.int64()),
    "even": pa.array(rows % 2 == 0),
    "whole": pa.array((rows * 7 - 100).astype(np.int32)),
    "pairs": pa.array([[row, row] for row in rows]),
})
ways = {
    "plain": dict(compression="none", use_dictionary=False),
    "snappy": dict(compression="snappy", use_dictionary=["few", "name"]),
    "gzip": dict(compression="gzip", data_page_version="2.0", use_dictionary=["few", "whole"]),
}
for name, way in ways.items():
    # Several groups, and several pages in each.
    pq.write_table(table, os.path.join(here, f"{name}.parquet"), row_group_size=120, data_page_size=256, write_statistics=False, **way)
holes = pa.table({"half": pa.array([0.5, None, 1.5]), "few": pa.array([1, 2, 3], pa.int64())})
pq.write_table(holes, os.path.join(here, "holes.parquet"))
pq.write_table(table.select(["half"]).slice(0, 3), os.path.join(here, "zstd.parquet"), compression="zstd")
