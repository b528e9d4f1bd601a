"""The zoo's `lstm` forecaster on a table of hourly series in Keras, for comparison with examples/forecast.toml.

    pip install tensorflow-cpu
    python rivals/forecast_keras.py ETTh1.csv [EPOCHS] [SEEDS] [FOLDER]

    for seed in 0 1 2; do plimsoll train FOLDER/forecast.toml --weights FOLDER/first-$seed.safetensors --epochs EPOCHS; done

The first 8,640 rows are learnt from, 11,520 to 14,400 are the test (each with the 96 rows before it as a first window). All seven series
are standardised by the rows that are learnt from; 96 hours in, the next 24 hours of the last series (OT) out. Two LSTMs of 64 units, one dense
layer, mean squared error, batches of 32, Adam 1e-3. Prints the test error after the last epoch for every seed, and their median.

The error after a few epochs depends on the first weights and on the order of the windows far more than on anything else. So, with a FOLDER,
both are made the same: the windows in one fixed random order, the first weights of each seed, and a configuration that takes both are
left there for the runs above, and neither side shuffles.
"""
import csv
import json
import os
import statistics
import struct
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras
import numpy as np

LENGTH, HORIZON, TRAIN, TEST = 96, 24, (0, 8640), (11520 - 96, 14400)

with open(sys.argv[1]) as file:
    table = np.array([[float(cell) for cell in row[1:]] for row in list(csv.reader(file))[1:]])
learnt = table[TRAIN[0] : TRAIN[1]]
table = ((table - learnt.mean(0)) / learnt.std(0)).astype("float32")


def windows(rows):
    part = table[rows[0] : rows[1]]
    starts = range(len(part) - LENGTH - HORIZON + 1)
    return np.stack([part[s : s + LENGTH] for s in starts]), np.stack([part[s + LENGTH : s + LENGTH + HORIZON, -1] for s in starts])


CONFIG = """[data]
source = "npy"
x = "x.npy"
y = "y.npy"

[data.validation]
x = "test_x.npy"
y = "test_y.npy"

[model]
zoo = "lstm"
input = [96, 7]
classes = 24

[train]
batch = 32
epochs = 3
loss = "mse"
metrics = ["mae"]
optimizer = { type = "adam", lr = 1e-3 }
"""


def save(model, path):
    """The weights as safetensors, under the names the zoo's network has."""
    names = [f"{layer}/{what}" for layer in ("lstm", "lstm_1") for what in ("kernel", "recurrent_kernel", "bias")] + ["dense/kernel", "dense/bias"]
    header, data = {}, b""
    for name, values in zip(names, model.get_weights(), strict=True):
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + values.nbytes]}
        data += values.astype("<f4").tobytes()
    header = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + data)


epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
seeds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
folder = sys.argv[4] if len(sys.argv) > 4 else None
x, y = windows(TRAIN)
test_x, test_y = windows(TEST)
if folder:
    os.makedirs(folder, exist_ok=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    for name, values in [("x", x), ("y", y), ("test_x", test_x), ("test_y", test_y)]:
        np.save(os.path.join(folder, f"{name}.npy"), values)
    with open(os.path.join(folder, "forecast.toml"), "w") as file:
        file.write(CONFIG)
errors = []
for seed in range(seeds):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.layers.Input([LENGTH, 7]), keras.layers.LSTM(64, return_sequences=True), keras.layers.LSTM(64), keras.layers.Dense(HORIZON)])
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    if folder:
        save(model, os.path.join(folder, f"first-{seed}.safetensors"))
    model.fit(x, y, batch_size=32, epochs=epochs, shuffle=folder is None, verbose=0)
    errors.append(model.evaluate(test_x, test_y, batch_size=256, verbose=0))
    print(f"seed {seed}: test error {errors[-1]:.5f} over {len(test_x)} windows", flush=True)
print(f"median {statistics.median(errors):.5f}")
