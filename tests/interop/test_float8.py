"""Numbers of 8 bits: fed, cast, kept in the graph, fetched."""
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import dtypes

tf1 = tf.compat.v1


@pytest.mark.asan
@pytest.mark.parametrize("t", [dtypes.float8_e5m2, dtypes.float8_e4m3fn], ids=lambda t: t.name)
def test_there_and_back(shared, t):
    x = np.array([[0.5, -3.3, 1000.0], [0, 1e-9, 17.0]], np.float32)
    p = tf1.placeholder(t, [None, 3])
    c = tf.constant(x.astype(t.as_numpy_dtype))
    fetches = [tf.identity(p), tf.cast(p, tf.float32), tf.cast(x, t), tf.cast(c, tf.bfloat16), tf.identity(c), tf.concat([p, c], 0), tf.reshape(p, [-1])]
    said = []
    for target in "", shared.target("worker"):
        with tf1.Session(target) as s:
            said.append(s.run(fetches, {p: x.astype(t.as_numpy_dtype)}))
    for want, got in zip(*said):
        assert want.dtype == got.dtype and want.shape == got.shape and want.tobytes() == got.tobytes()
