"""The same graph in TensorFlow's own session and in one of ours; values and error codes must agree."""
import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


class Failed:
    def __init__(self, code, message):
        self.code, self.message = code, message

    def __repr__(self):
        return f"<{self.code}: {self.message}>"


def run(target, fetches, feed=None, before=(), times=1):
    """What each run gave: a value, or an error's code."""
    out = []
    with tf1.Session(target, config=tf1.ConfigProto(operation_timeout_in_ms=60000)) as s:
        for b in before:
            s.run(b)
        for _ in range(times):
            try:
                out.append(s.run(fetches, feed))
            except tf.errors.OpError as e:
                out.append(Failed(e.error_code, e.message.split("Node: ")[-1]))
    return out


def close(a, b, rtol, atol, path="result"):
    if isinstance(b, dict):
        assert a.keys() == b.keys(), path
        for k in b:
            close(a[k], b[k], rtol, atol, f"{path}[{k!r}]")
    elif isinstance(b, (list, tuple)):
        assert isinstance(a, (list, tuple)) and len(a) == len(b), f"{path}: {a!r} and {b!r}"
        for i, (x, y) in enumerate(zip(a, b)):
            close(x, y, rtol, atol, f"{path}[{i}]")
    elif b is None:
        assert a is None, path
    else:
        x, y = np.asarray(a), np.asarray(b)
        assert x.dtype == y.dtype and x.shape == y.shape, f"{path}: {x.dtype}{x.shape} and {y.dtype}{y.shape}: {a!r} and {b!r}"
        if y.dtype.kind in "fc":
            np.testing.assert_allclose(x, y, rtol=rtol, atol=atol, err_msg=path)
        else:
            assert x.tolist() == y.tolist(), f"{path}: {a!r} and {b!r}"


def agree(got, want, rtol=0, atol=0):
    """Results of several runs, one by one: the same values, or errors with the same code. Returns what they agreed on."""
    assert len(got) == len(want), f"ours has {len(got)} results, TensorFlow {len(want)}"
    for i, (g, w) in enumerate(zip(got, want)):
        if isinstance(w, Failed) or isinstance(g, Failed):
            assert isinstance(g, Failed) and isinstance(w, Failed) and g.code == w.code, f"run {i}: ours: {str(g):.400}; TensorFlow: {str(w):.400}"
        else:
            close(g, w, rtol, atol, f"run {i}")
    return want


def same(target, fetches, feed=None, before=(), times=1, rtol=1e-5, atol=1e-6):
    """Ours against TensorFlow's; returns what they agreed on."""
    want = run("", fetches, feed, before, times)
    return agree(run(target, fetches, feed, before, times), want, rtol, atol)
