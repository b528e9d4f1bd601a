"""Writes models as Keras saves them, with inputs and what Keras predicts for them, for the tests of `import`.

    python keras_models.py          (Keras 3 on TensorFlow, and tf_keras for files of Keras 2)

Every model goes to keras/NAME.keras or keras/NAME.h5; keras/models.json has inputs by column and outputs in order. Weights are random
numbers of three digits: what is compared are graphs and weights, not training.
"""

import json
import os
import pathlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np
import tf_keras

L = keras.layers
HERE = pathlib.Path(__file__).parent / "keras"
draw = np.random.default_rng(5)
cases = []


def plain(array):
    array = np.asarray(array, dtype=np.float32)
    return {"shape": list(array.shape), "data": [float(f"{x:.7g}") for x in array.ravel()]}


def save(name, model, *inputs, legacy=False):
    fresh = []
    for weight in model.weights:
        path = getattr(weight, "path", weight.name)
        if "count" in path:
            fresh.append(np.zeros(weight.shape))
            continue
        spread = np.abs(draw.normal(size=weight.shape)) + 0.5 if "variance" in path else 0.4 * draw.normal(size=weight.shape)
        fresh.append(np.round(spread, 3))
    model.set_weights(fresh)
    for layer in model.layers:
        if isinstance(layer, L.Normalization):
            layer.finalize_state()
    results = model(list(inputs) if len(inputs) > 1 else inputs[0], training=False)
    results = results if isinstance(results, (list, tuple)) else [results]
    file = f"{name}.h5" if legacy else f"{name}.keras"
    model.save(HERE / file)
    cases.append({"file": file, "inputs": [plain(x) for x in inputs], "outputs": [plain(y) for y in results]})


def numbers(*shape):
    return np.round(draw.normal(size=shape), 3).astype(np.float32)


def image_graph(legacy):
    image = keras.Input((8, 8, 3), name="image")
    x = L.Rescaling(0.5, offset=-0.25)(image)
    x = L.Conv2D(4, 3, activation="relu", name="first")(x)
    x = L.BatchNormalization()(x)
    inner = keras.Sequential([L.Conv2D(4, 1), L.BatchNormalization(), L.ReLU(6.0)], name="inner")
    x = inner(x)
    if not legacy:
        x = 2.0 - x * 0.5 + 1.0
        x = keras.ops.relu(x[:, 1:4])
    wide = L.Flatten()(x)
    values = L.Dense(2, name="values")(wide)
    classes = L.Dense(3, activation="softmax", name="classes")(wide)
    model = keras.Model(image, [values, classes], name="graph")
    model.compile(keras.optimizers.Adam(0.002), ["mse", "categorical_crossentropy"], metrics=[["mae"], ["accuracy"]])
    return model


save("graph", image_graph(False), numbers(2, 8, 8, 3))
save("graph", image_graph(True), numbers(2, 8, 8, 3), legacy=True)

one, other = keras.Input((4,), name="one"), keras.Input((4,), name="other")
block_in = keras.Input((4,))
block = keras.Model(block_in, L.Add()([block_in, L.Dense(4, activation="tanh")(block_in)]), name="block")
shared = L.Dense(4, name="shared")
merged = L.Concatenate()([shared(block(one)), shared(block(other)), L.Maximum()([one, other])])
merged = L.Multiply()([merged, L.Dense(1, activation="sigmoid")(merged)])
model = keras.Model([one, other], L.Dense(2)(merged), name="shared_graph")
model.compile("sgd", "mse")
save("shared", model, numbers(3, 4), numbers(3, 4))

tokens = keras.Input((6,), dtype="int32", name="tokens")
x = L.Embedding(9, 4, mask_zero=True)(tokens)
x = L.Bidirectional(L.LSTM(3, return_sequences=True))(x)
x = L.Dropout(0.5)(x)
x = L.GRU(4)(x)
model = keras.Model(tokens, L.Dense(1, activation="sigmoid")(x), name="words")
model.compile("rmsprop", "binary_crossentropy", metrics=["accuracy"])
save("words", model, np.array([[1, 5, 8, 2, 0, 0], [3, 3, 1, 0, 0, 0], [7, 6, 5, 4, 3, 2]]))
save("words", model, np.array([[1, 5, 8, 2, 0, 0], [3, 3, 1, 0, 0, 0], [7, 6, 5, 4, 3, 2]]), legacy=True)

tokens = keras.Input((5,), dtype="int32")
x = L.Embedding(9, 6)(tokens)
x = L.Add()([x, L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True)])
x = L.LayerNormalization(epsilon=1e-5)(x)
query = L.Dense(6, activation="gelu")(x)
x = L.Add()([x, L.MultiHeadAttention(3, 2, use_bias=False)(query, x)])
x = L.RMSNormalization()(x)
x = L.GlobalAveragePooling1D()(x)
save("attention", keras.Model(tokens, L.Dense(3)(x), name="attention"), draw.integers(0, 9, size=(3, 5)))

series = [
    keras.Input((12, 3)), L.Normalization(), L.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu"),
    L.ZeroPadding1D((1, 0)), L.MaxPooling1D(2), L.SeparableConv1D(4, 3, padding="same"), L.Conv1DTranspose(3, 3, strides=2, padding="same"),
    L.SimpleRNN(4, return_sequences=True), L.TimeDistributed(L.Dense(3, activation="relu")), L.UpSampling1D(2), L.Cropping1D((1, 2)),
    L.AveragePooling1D(3, strides=2), L.DepthwiseConv1D(2), L.LSTM(3, go_backwards=True), L.RepeatVector(2), L.GRU(3, return_sequences=True),
    L.Reshape((3, -1)), L.Permute((2, 1)), L.Flatten(), L.Dense(2),
]
save("series", keras.Sequential(series, name="series"), numbers(2, 12, 3))

image = keras.Input((9, 7, 4))
x = L.DepthwiseConv2D(3, padding="same", depth_multiplier=2, strides=1)(image)
x = L.PReLU(shared_axes=[1, 2])(x)
x = L.SeparableConv2D(6, 3, padding="valid", dilation_rate=1)(x)
x = L.GroupNormalization(3)(x)
x = L.LeakyReLU(negative_slope=0.1)(x)
x = L.Conv2DTranspose(4, 3, strides=2, padding="same", activation="elu")(x)
x = L.ZeroPadding2D(((1, 0), (2, 1)))(x)
x = L.UpSampling2D(2, interpolation="bilinear")(x)
x = L.Cropping2D(((1, 2), (0, 3)))(x)
x = L.Conv2D(6, 3, strides=2, groups=2, padding="same")(x)
x = L.AveragePooling2D(2, padding="same")(x)
squeeze = L.GlobalAveragePooling2D(keepdims=True)(x)
squeeze = L.Conv2D(6, 1, activation="hard_sigmoid")(squeeze)
x = L.Multiply()([x, squeeze])
x = L.MaxPooling2D(3, 2, padding="same")(x)
x = L.Concatenate(axis=1)([x, x])
x = L.GlobalMaxPooling2D()(x)
save("images", keras.Model(image, x, name="images"), numbers(2, 9, 7, 4))

K = tf_keras.layers
inner = tf_keras.Sequential([K.Conv2D(3, 2, input_shape=(5, 5, 2)), K.BatchNormalization(), K.Activation("relu")], name="body")
image = tf_keras.Input((5, 5, 2))
x = K.GlobalAveragePooling2D()(inner(image))
model = tf_keras.Model(image, K.Dense(2, activation="softmax")(x), name="keras2")
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
save("keras2", model, numbers(2, 5, 5, 2), legacy=True)

odd = keras.Input((4, 4, 2))
x = L.Conv3D(2, 2)(L.Reshape((2, 2, 4, 2))(odd))
x = L.Flatten()(x)
x = L.UnitNormalization()(x)
keras.Model(odd, L.Dense(2)(x)).save(HERE / "refused.keras")

(HERE / "models.json").write_text(json.dumps(cases, separators=(",", ":")).replace('{"file"', '\n{"file"') + "\n")
print(len(cases), "models")
