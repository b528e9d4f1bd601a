#!/usr/bin/env python3
"""The loss of knowledge distillation as in Keras' example, with its gradient, for the tests of distillation.

    pip install tensorflow-cpu
    ./keras_distillation.py > distillation.json
"""

import json

import keras
import numpy as np
import tensorflow as tf

random = np.random.default_rng(3)
plain = lambda tensor: [float(x) for x in np.asarray(tensor).ravel()]


def case(temperature, alpha, rows=5, classes=4):
    student = tf.constant(random.normal(size=(rows, classes)).astype(np.float32) * 2)
    teacher = tf.constant(random.normal(size=(rows, classes)).astype(np.float32) * 4)
    labels = random.integers(0, classes, rows)
    with tf.GradientTape() as tape:
        tape.watch(student)
        hard = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, student)
        soft = keras.losses.KLDivergence()(tf.nn.softmax(teacher / temperature), tf.nn.softmax(student / temperature))
        loss = alpha * hard + (1 - alpha) * soft * temperature**2
    return {
        "temperature": temperature,
        "alpha": alpha,
        "classes": classes,
        "student": plain(student),
        "teacher": plain(teacher),
        "labels": [int(label) for label in labels],
        "loss": float(loss),
        "gradient": plain(tape.gradient(loss, student)),
    }


print(json.dumps([case(1.0, 0.5), case(3.0, 0.1), case(10.0, 0.0)]))
