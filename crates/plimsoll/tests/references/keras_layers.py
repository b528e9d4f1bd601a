"""Writes layers.json: what Keras' layers make of given numbers, and their gradients, for the tests of `nn`.

    python keras_layers.py          (Keras 3 on TensorFlow)

Every case has the layer as a configuration names it, its input, perhaps a mask, its weights by name, its result while learning, the moving statistics
afterwards, and the gradients of the sum of the result times `pull` with respect to the input and to the weights.
"""

import json
import pathlib

import keras
import numpy as np
import tensorflow as tf

L = keras.layers
draw = np.random.default_rng(11)
cases = []


def plain(array):
    array = np.asarray(array, dtype=np.float32)
    return {"shape": list(array.shape), "data": [float(f"{x:.8g}") for x in array.ravel()]}


def case(name, config, layer, shape, training=True, names=None, reorder=lambda name, array: array, mask=None, call=None):
    x = tf.constant(draw.normal(size=shape).astype(np.float32))
    masks = {} if mask is None else {"mask": tf.constant(np.asarray(mask, dtype=bool))}
    call = call or (lambda x, **given: layer(x, **given))
    call(x, **masks)
    fresh = []
    for weight in layer.weights:
        spread = np.abs(draw.normal(size=weight.shape)) + 0.5 if "variance" in weight.path else 0.5 * draw.normal(size=weight.shape)
        fresh.append(spread.astype(np.float32))
    layer.set_weights(fresh)
    if isinstance(layer, L.Normalization):
        layer.finalize_state()
    names = names or [weight.path.split("/")[-1] for weight in layer.weights]
    before = {n: plain(reorder(n, w)) for n, w in zip(names, fresh)}
    takes_training = "training" in layer.call.__code__.co_varnames
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = call(x, training=training, **masks) if takes_training else call(x, **masks)
        pull = tf.constant(draw.normal(size=y.shape).astype(np.float32))
        loss = tf.reduce_sum(y * pull)
    learnt = [w for w in layer.trainable_weights]
    gradients = tape.gradient(loss, [x] + [w.value for w in learnt])
    by_name = {w.path: n for w, n in zip(layer.weights, names)}
    after = {n: plain(reorder(n, w)) for n, w in zip(names, layer.get_weights()) if "moving" in n}
    cases.append({
        "name": name, "layer": config, "training": training, "x": plain(x), "weights": before, "y": plain(y), "pull": plain(pull),
        "dx": plain(gradients[0]), "gradients": {by_name[w.path]: plain(reorder(by_name[w.path], g)) for w, g in zip(learnt, gradients[1:])},
        "after": after, **({} if mask is None else {"mask": plain(mask)}),
    })


def flat_depthwise(name, array):
    # [h, w, channels, multiplier] with the filters of a channel together is [h, w, 1, channels·multiplier].
    array = np.asarray(array)
    return array.reshape(array.shape[0], array.shape[1], 1, -1) if array.ndim == 4 and name in ("kernel", "depthwise_kernel") else array


norm = {"type": "batch_norm"}
case("batch norm, learning", norm, L.BatchNormalization(), (3, 4, 5, 2))
case("batch norm, predicting", norm, L.BatchNormalization(), (3, 4, 5, 2), training=False)
case("batch norm of features", {"type": "batch_norm", "momentum": 0.8, "epsilon": 0.01}, L.BatchNormalization(momentum=0.8, epsilon=0.01), (7, 3))
case("layer norm", {"type": "layer_norm"}, L.LayerNormalization(), (2, 3, 5))
case("group norm", {"type": "group_norm", "groups": 2}, L.GroupNormalization(2), (2, 3, 3, 6))
case("rms norm", {"type": "rms_norm"}, L.RMSNormalization(), (2, 3, 5), names=["gamma"])
for padding in ("valid", "same"):
    config = {"type": "conv2d_transpose", "filters": 3, "size": 3, "stride": 2, "padding": padding}
    case(f"transposed convolution, {padding}", config, L.Conv2DTranspose(3, 3, 2, padding=padding), (2, 4, 3, 2))
    config = {"type": "conv2d", "filters": 4, "size": [3, 2], "stride": 2, "padding": padding, "groups": 2}
    case(f"grouped convolution, {padding}", config, L.Conv2D(4, (3, 2), 2, padding=padding, groups=2), (2, 5, 6, 4))
    config = {"type": "depthwise_conv2d", "size": 3, "stride": 2, "padding": padding, "multiplier": 2}
    case(f"depthwise convolution, {padding}", config, L.DepthwiseConv2D(3, 2, padding=padding, depth_multiplier=2), (2, 6, 5, 3), reorder=flat_depthwise)
config = {"type": "conv2d_transpose", "filters": 2, "size": 2, "stride": 3}
case("transposed convolution, gaps", config, L.Conv2DTranspose(2, 2, 3), (1, 2, 3, 2))
config = {"type": "conv2d", "filters": 2, "size": 3, "dilation": 2, "padding": "same"}
case("dilated convolution", config, L.Conv2D(2, 3, dilation_rate=2, padding="same"), (1, 6, 5, 2))
config = {"type": "separable_conv2d", "filters": 3, "size": 3, "padding": "same"}
case("separable convolution", config, L.SeparableConv2D(3, 3, padding="same"), (1, 5, 4, 2), names=["depthwise_kernel", "pointwise_kernel", "bias"], reorder=flat_depthwise)
case("causal convolution", {"type": "conv1d", "filters": 3, "size": 2, "dilation": 2, "padding": "causal"}, L.Conv1D(3, 2, dilation_rate=2, padding="causal"), (2, 6, 2), reorder=lambda n, a: a[None] if n == "kernel" else a)
case("nearest", {"type": "up_sampling2d", "factor": [2, 3]}, L.UpSampling2D((2, 3)), (1, 2, 3, 2))
case("bilinear", {"type": "up_sampling2d", "factor": [3, 2], "method": "bilinear"}, L.UpSampling2D((3, 2), interpolation="bilinear"), (1, 3, 4, 2))
case("average pooling at edges", {"type": "average_pool2d", "size": 3, "stride": 2, "padding": "same"}, L.AveragePooling2D(3, 2, padding="same"), (1, 5, 6, 2))
case("largest of all", {"type": "global_max_pool"}, L.GlobalMaxPooling2D(), (2, 3, 4, 2))
case("prelu", {"type": "prelu"}, L.PReLU(), (2, 3, 2))
for name in ("relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "softplus", "softsign", "hard_sigmoid", "hard_swish", "log_sigmoid",
             "hard_tanh", "tanh_shrink", "hard_shrink", "soft_shrink", "squareplus", "sparse_plus", "sparse_sigmoid", "exponential", "log_softmax", "softmax"):
    case(name, {"type": name}, L.Activation(name), (3, 8))
case("gelu_tanh", {"type": "gelu_tanh"}, L.Activation(lambda x: keras.activations.gelu(x, approximate=True)), (3, 8))

case("lstm", {"type": "lstm", "units": 3, "sequence": True}, L.LSTM(3, return_sequences=True), (2, 4, 2), names=["kernel", "recurrent_kernel", "bias"])
case("lstm, last", {"type": "lstm", "units": 2}, L.LSTM(2), (2, 3, 2), names=["kernel", "recurrent_kernel", "bias"])
case("simple rnn", {"type": "simple_rnn", "units": 3, "sequence": True}, L.SimpleRNN(3, return_sequences=True), (2, 4, 2), names=["kernel", "recurrent_kernel", "bias"])
case("gru", {"type": "gru", "units": 3, "sequence": True}, L.GRU(3, return_sequences=True), (2, 4, 2), names=["kernel", "recurrent_kernel", "biases"])


def part_biases():
    # Keras keeps both biases of a GRU in one matrix.
    for part in (cases[-1]["weights"], cases[-1]["gradients"]):
        both = np.asarray(part.pop("biases")["data"]).reshape(2, -1)
        part["bias"], part["recurrent_bias"] = plain(both[0]), plain(both[1])


part_biases()
case("both ways", {"type": "bidirectional", "cell": "lstm", "units": 2, "sequence": True}, L.Bidirectional(L.LSTM(2, return_sequences=True)), (2, 3, 2),
     names=["forward_kernel", "forward_recurrent_kernel", "forward_bias", "backward_kernel", "backward_recurrent_kernel", "backward_bias"])

# Steps that are skipped: at the end, at the beginning, in between; what was before is given again.
gaps = [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1]]
walks = ["kernel", "recurrent_kernel", "bias"]
for sequence in (True, False):
    which = "all" if sequence else "last"
    for kind, layer in (("lstm", L.LSTM), ("simple_rnn", L.SimpleRNN)):
        config = {"type": kind, "units": 3, "sequence": sequence, "masked": True}
        case(f"{kind}, masked, {which}", config, layer(3, return_sequences=sequence), (3, 5, 2), names=walks, mask=gaps)
    config = {"type": "gru", "units": 3, "sequence": sequence, "masked": True}
    case(f"gru, masked, {which}", config, L.GRU(3, return_sequences=sequence), (3, 5, 2), names=walks[:2] + ["biases"], mask=gaps)
    part_biases()
    config = {"type": "bidirectional", "cell": "lstm", "units": 2, "sequence": sequence, "masked": True}
    case(f"both ways, masked, {which}", config, L.Bidirectional(L.LSTM(2, return_sequences=sequence)), (3, 5, 2),
         names=[f"{way}_{name}" for way in ("forward", "backward") for name in walks], mask=gaps)


def attention(name, heads, depth, width, mask, causal=False):
    layer = L.MultiHeadAttention(heads, depth)
    config = {"type": "multi_head_attention", "heads": heads, "depth": depth, "causal": causal}
    if mask is not None:
        config["masked"] = True
    call = lambda x, mask=None, **given: layer(x, x, key_mask=mask, use_causal_mask=causal, **given)
    parts = ["query", "key", "value"]
    names = [f"{part}_{what}" for part in parts + ["output"] for what in ("kernel", "bias")]
    case(name, config, layer, (3, 5, width), names=names, mask=mask, call=call)
    # Ours is one projection: the queries of all heads, then the keys, then the values.
    for part in (cases[-1]["weights"], cases[-1]["gradients"]):
        array = {n: np.asarray(part.pop(n)["data"]) for n in names}
        part["query_key_value_kernel"] = plain(np.concatenate([array[f"{p}_kernel"].reshape(width, heads * depth) for p in parts], axis=1))
        part["query_key_value_bias"] = plain(np.concatenate([array[f"{p}_bias"].ravel() for p in parts]))
        part["output_kernel"] = plain(array["output_kernel"].reshape(heads * depth, width))
        part["output_bias"] = plain(array["output_bias"])


# Every query sees a key: what Keras gives for one that sees none is the mean of all values, here it is zero.
hidden = [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 1, 0, 1]]
attention("attention", 2, 3, 4, None)
attention("attention, causal", 2, 2, 4, None, causal=True)
attention("attention, keys hidden", 2, 3, 4, hidden)
attention("attention, causal, keys hidden", 1, 4, 4, hidden, causal=True)

case("rescaling", {"type": "rescaling", "scale": 0.25, "offset": -0.5}, L.Rescaling(0.25, -0.5), (2, 3, 4))
case("normalization", {"type": "normalization"}, L.Normalization(), (2, 3, 4), names=["mean", "variance", "count"])
case("normalization, inverted", {"type": "normalization", "invert": True}, L.Normalization(invert=True), (2, 4), names=["mean", "variance", "count"])
case("relu, bounded", {"type": "re_lu", "max_value": 0.75, "slope": 0.1, "threshold": 0.25}, L.ReLU(0.75, 0.1, 0.25), (3, 7))
case("max pool of sequences", {"type": "max_pool1d", "size": 3, "stride": 2, "padding": "same"}, L.MaxPooling1D(3, 2, "same"), (2, 7, 3))
case("average pool of sequences", {"type": "average_pool1d", "size": 2}, L.AveragePooling1D(2), (2, 7, 3))
case("repeated steps", {"type": "up_sampling1d", "factor": 3}, L.UpSampling1D(3), (2, 4, 3))
case("padded sequence", {"type": "zero_padding1d", "padding": [1, 2]}, L.ZeroPadding1D((1, 2)), (2, 4, 3))
case("cropped sequence", {"type": "cropping1d", "padding": [1, 2]}, L.Cropping1D((1, 2)), (2, 6, 3))
case("transposed convolution of sequences", {"type": "conv1d_transpose", "filters": 2, "size": 3, "stride": 2, "padding": "same"},
     L.Conv1DTranspose(2, 3, 2, "same"), (2, 4, 3))
case("depthwise convolution of sequences", {"type": "depthwise_conv1d", "size": 3, "multiplier": 2}, L.DepthwiseConv1D(3, depth_multiplier=2),
     (2, 6, 3))
case("separable convolution of sequences", {"type": "separable_conv1d", "filters": 4, "size": 3, "padding": "same", "activation": "relu"},
     L.SeparableConv1D(4, 3, padding="same", activation="relu"), (2, 6, 3))
case("dense over time", {"type": "time_distributed", "layer": {"type": "dense", "units": 3}}, L.TimeDistributed(L.Dense(3)), (2, 4, 5))
case("convolution over time", {"type": "time_distributed", "layer": {"type": "conv2d", "filters": 2, "size": 2}},
     L.TimeDistributed(L.Conv2D(2, 2)), (2, 3, 4, 4, 2))
fixed = L.BatchNormalization()
case("batch normalization, fixed statistics", {"type": "batch_norm", "fixed_statistics": True}, fixed, (4, 3),
     call=lambda x, **given: fixed(x, training=False))

pathlib.Path(__file__).with_name("layers.json").write_text(json.dumps(cases, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")
print(len(cases), "cases")
