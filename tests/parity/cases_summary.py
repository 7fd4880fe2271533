"""Summaries: compared as messages, since the order of fields is nobody's business."""
import numpy as np
import tensorflow as tf

from kernels import Case as C
from strings import s

REAL = [np.float32, np.float64, np.float16, tf.bfloat16.as_numpy_dtype, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16]


def same(want, got):
    w, g = (tf.compat.v1.Summary.FromString(x[0].item()) for x in (want, got))
    for m in (w, g):
        for v in m.value:
            v.node_name = ""  # there are no node names in eager mode
    if got[0].shape != ():
        return "the summary is no scalar"
    return None if w == g else "ours %s\nTensorFlow's %s" % (str(g)[:2000], str(w)[:2000])


def summary(**values):
    m = tf.compat.v1.Summary()
    for k, v in values.items():
        m.value.add(tag=k, simple_value=v)
    return m


def cases_scalar(rng, quick):
    for t in REAL:
        yield C("ScalarSummary", [s("loss"), np.array(3.7).astype(t)], check=same)
        yield C("ScalarSummary", [s(["a", ""]), np.array([0, 100]).astype(t)], check=same)
    yield C("ScalarSummary", [s("x"), np.array((1 << 62) + (1 << 38) + 1)], check=same)
    yield C("ScalarSummary", [s("x"), np.float32("nan").reshape(())], check=lambda w, g: None)
    yield C("ScalarSummary", [s("x"), np.float64("inf").reshape(())], check=same)
    yield C("ScalarSummary", [s("x"), np.array([1.0])], check=same)
    yield C("ScalarSummary", [s(["x"]), np.array(1.0)], check=same)
    yield C("ScalarSummary", [s(["x", "y"]), np.array([[1.0, 2.0]])], check=same)


def cases_histogram(rng, quick):
    for t in REAL:
        yield C("HistogramSummary", [s("h"), (rng.rand(4, 5) * 90).astype(t)], check=same)
        yield C("HistogramSummary", [s("h"), np.zeros((0,), t)], check=same)
        yield C("HistogramSummary", [s("h"), np.zeros((3,), t)], check=same)
    for scale in (1e-300, 1e-12, 1e-3, 1, 1e19, 1e100, 1e307):
        yield C("HistogramSummary", [s("h"), (rng.rand(100) - 0.5) * scale], check=same)
    # TensorFlow writes behind its buckets here and crashes.
    yield C("HistogramSummary", [s("h"), np.array([np.finfo(np.float64).max, -np.finfo(np.float64).max])], code=0)
    yield C("HistogramSummary", [s("h"), 1e-12 * 1.1 ** np.arange(-3, 790)], check=same)
    yield C("HistogramSummary", [s("h"), np.array([1, np.nan], np.float32)], check=same)
    yield C("HistogramSummary", [s("h"), np.array([1, -np.inf], np.float32)], check=same)
    yield C("HistogramSummary", [s(["h"]), np.array([1], np.float32)], check=same)
    yield C("HistogramSummary", [s(""), np.array(-0.0)], check=same)


def cases_merge(rng, quick):
    a, b = summary(a=1, b=0).SerializeToString(), summary(c=2).SerializeToString()
    yield C("MergeSummary", [[s(a), s(b)]], check=same)
    yield C("MergeSummary", [[s([a, b]), s("")]], check=same)
    yield C("MergeSummary", [[s(a), s(a)]], check=same)
    yield C("MergeSummary", [[s(b"\x0a\x05ab")]], check=same)
    yield C("MergeSummary", [[s(b"junk")]], check=same)
    no_tag = tf.compat.v1.Summary()
    no_tag.value.add(simple_value=1)
    no_tag.value.add(node_name="n", tensor=tf.make_tensor_proto([1, 2]))
    yield C("MergeSummary", [[s(no_tag.SerializeToString()), s(no_tag.SerializeToString())]], check=same)


def cases_tensor(rng, quick):
    meta = tf.compat.v1.SummaryMetadata(display_name="shown", summary_description="what", data_class=2)
    meta.plugin_data.plugin_name = "scalars"
    meta.plugin_data.content = b"\x00\xff"
    for m in (meta.SerializeToString(), b""):
        for x in (np.float32(3).reshape(()), np.arange(6).reshape(2, 3), s(["a", "bc"]), np.zeros((0, 2), np.float32), np.array([True]), np.array([1j]),
                  np.ones((3, 100), np.float16)):
            yield C("TensorSummaryV2", [s("tag"), x, s(m)], check=same)
            yield C("TensorSummary", [x], check=same)
    yield C("TensorSummaryV2", [s(["tag"]), np.array(1.0), s("")], check=same)
    yield C("TensorSummaryV2", [s("tag"), np.array(1.0), s([""])], check=same)
