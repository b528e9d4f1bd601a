#!/usr/bin/env python3
"""Writes preprocessing.json: what Keras' preprocessing layers make of small columns, for src/config/keras_preprocessing.rs.

    python preprocessing.py      # needs keras and tensorflow
"""
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, keras, tensorflow as tf
from keras import layers as L

CASES = []

def case(name, cells, options, layer, adapt=True):
    """`cells` are those of column `c`; `options` its entry in `[data.columns]`."""
    values = np.array(cells)
    column = values.reshape(-1, 1)
    if adapt:
        layer.adapt(column if values.dtype.kind != "U" or isinstance(layer, L.StringLookup) else values)
    out = layer(tf.constant(values) if isinstance(layer, L.TextVectorization) else column)
    out = np.asarray(out, dtype=np.float32).reshape(len(values), -1)
    CASES.append({"name": name, "cells": [str(cell) for cell in cells], "options": options, "rows": out.tolist()})

numbers = [0.5, -3.25, 8.0, 2.5, 100.0, -7.75, 2.5, 0.0, 41.0, 6.5]
integers = [3, 7, 3, 3, 9, -4, 7, 1000, 9, 7, 3]
words = ["red", "green", "red", "blue", "red", "green", "fuchsia is a rather long name of a colour, longer than sixty-four bytes", "x", "blue", "violet blue", "seventeen letters", ""]
texts = ["To be, or not to be: that is the question.", "Whether 'tis nobler in the mind", "the the THE", "", "be not  the\tmind", "Zäh é!"]

case("Normalization", numbers, '{ type = "number", encode = "normalize" }', L.Normalization(axis=-1))
case("Normalization, given", numbers, '{ type = "number", encode = "normalize", mean = 2, std = 4 }', L.Normalization(mean=2.0, variance=16.0), adapt=False)
case("Rescaling", numbers, '{ type = "number", encode = "rescale", scale = 0.25, offset = -1 }', L.Rescaling(0.25, -1.0), adapt=False)
case("Discretization, boundaries", numbers, '{ type = "number", encode = "discretize", boundaries = [-1, 2.5, 10], output = "int" }', L.Discretization([-1.0, 2.5, 10.0]), adapt=False)
case("Discretization, one_hot", numbers, '{ type = "number", encode = "discretize", boundaries = [-1, 2.5, 10] }', L.Discretization([-1.0, 2.5, 10.0], output_mode="one_hot"), adapt=False)
many = [float(v) for v in np.random.default_rng(7).normal(size=400).round(3)]
for bins in [4, 7]:
    case(f"Discretization, {bins} bins", many, f'{{ type = "number", encode = "discretize", bins = {bins}, output = "int" }}', L.Discretization(num_bins=bins))
case("StringLookup", words, '{ type = "category", encode = "lookup", output = "int" }', L.StringLookup())
case("StringLookup, one_hot", words, '{ type = "category", encode = "lookup" }', L.StringLookup(output_mode="one_hot"))
case("StringLookup, max_tokens", words, '{ type = "category", encode = "lookup", output = "int", max_tokens = 4 }', L.StringLookup(max_tokens=4))
case("StringLookup, given", words, '{ type = "category", encode = "lookup", output = "int", vocabulary = ["blue", "red"] }', L.StringLookup(vocabulary=["blue", "red"]), adapt=False)
case("StringLookup, three oov", words, '{ type = "category", encode = "lookup", output = "int", vocabulary = ["blue", "red"], oov = 3 }', L.StringLookup(vocabulary=["blue", "red"], num_oov_indices=3), adapt=False)
case("StringLookup, mask", words, '{ type = "category", encode = "lookup", output = "int", mask = "green" }', L.StringLookup(mask_token="green"))
case("IntegerLookup", integers, '{ type = "number", encode = "lookup", output = "int" }', L.IntegerLookup())
case("IntegerLookup, one_hot", integers, '{ type = "number", encode = "lookup" }', L.IntegerLookup(output_mode="one_hot"))
case("IntegerLookup, three oov", integers, '{ type = "number", encode = "lookup", output = "int", vocabulary = [3, 7], oov = 3 }', L.IntegerLookup(vocabulary=[3, 7], num_oov_indices=3), adapt=False)
case("Hashing", words, '{ type = "category", encode = "hash", bins = 1000, output = "int" }', L.Hashing(1000), adapt=False)
case("Hashing, integers", integers, '{ type = "number", encode = "hash", bins = 1000, output = "int" }', L.Hashing(1000), adapt=False)
case("Hashing, salt", words, '{ type = "category", encode = "hash", bins = 1000, salt = 133, output = "int" }', L.Hashing(1000, salt=133), adapt=False)
case("Hashing, salt of two", words, '{ type = "category", encode = "hash", bins = 1000, salt = [133, 137], output = "int" }', L.Hashing(1000, salt=[133, 137]), adapt=False)
case("Hashing, mask", words, '{ type = "category", encode = "hash", bins = 10, mask = "red", output = "int" }', L.Hashing(10, mask_value="red"), adapt=False)
case("Hashing, one_hot", words, '{ type = "category", encode = "hash", bins = 8 }', L.Hashing(8, output_mode="one_hot"), adapt=False)
ids = [0, 2, 1, 3, 3]
case("CategoryEncoding, one_hot", ids, '{ type = "number", encode = "lookup", oov = 0, vocabulary = [0, 1, 2, 3] }', L.CategoryEncoding(4, output_mode="one_hot"), adapt=False)
case("TextVectorization", texts, '{ type = "text" }', L.TextVectorization(output_sequence_length=10))
case("TextVectorization, max_tokens", texts, '{ type = "text", max_tokens = 6, length = 4 }', L.TextVectorization(max_tokens=6, output_sequence_length=4))
case("TextVectorization, bigrams", texts, '{ type = "text", ngrams = 2, length = 20 }', L.TextVectorization(ngrams=2, output_sequence_length=20))
case("TextVectorization, n-grams", texts, '{ type = "text", ngrams = [2, 3], length = 20 }', L.TextVectorization(ngrams=(2, 3), output_sequence_length=20))
case("TextVectorization, characters", texts, '{ type = "text", split = "character", standardize = "lower", length = 12 }', L.TextVectorization(split="character", standardize="lower", output_sequence_length=12))
case("TextVectorization, as is", texts, '{ type = "text", standardize = "none", length = 12 }', L.TextVectorization(standardize=None, output_sequence_length=12))
case("TextVectorization, multi_hot", texts, '{ type = "text", output = "multi_hot" }', L.TextVectorization(output_mode="multi_hot"))
case("TextVectorization, count", texts, '{ type = "text", output = "count", max_tokens = 7 }', L.TextVectorization(output_mode="count", max_tokens=7))
case("TextVectorization, tf_idf", texts, '{ type = "text", output = "tf_idf" }', L.TextVectorization(output_mode="tf_idf"))

json.dump(CASES, open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "preprocessing.json"), "w"))
print(len(CASES), "cases")
