"""Every variant of every program on TensorFlow's servers and on ours, from the same seeds.

Deterministic programs: the losses of the first 20 steps agree to 1e-4, and so does everything else that a program reports (to 1e-3, after
all steps). All programs: they learn, and end within noise of each other.
"""
import importlib
import pathlib

import numpy as np
import pytest
import trainer

HERE = pathlib.Path(__file__).resolve().parent
NAMES = sorted(f.stem for f in HERE.glob("*.py") if "\nVARIANTS = " in f.read_text() and f.stem != pathlib.Path(__file__).stem)
MIXED = {"mlp.adam-ref", "mlp.ftrl-resource", "convnet.mnist", "embeddings.nce-parts", "rnn.dynamic-lstm", "control_flow.while-v2", "partitioned.fixed-ref", "wide_deep.wide-deep",
         "monitored.saved", "replicas.sync", "replicas.async"}
STEPS = 40


def cases():
    for name in NAMES:
        m = importlib.import_module(name)
        for v in m.VARIANTS:
            for kind in ("trn", "mixed"):
                label = f"{name}.{v}"
                if kind == "mixed" and label not in MIXED:
                    continue
                slow = v not in m.QUICK or kind == "mixed" and label not in ("mlp.adam-ref", "replicas.sync")
                yield pytest.param(m, v, kind, id=f"{label}-{kind}", marks=[pytest.mark.slow] if slow else [])


@pytest.fixture(scope="session")
def results():
    """What a program gave on TensorFlow, kept for the comparison with the next kind of cluster."""
    return {}


def run(clusters, kind, module, variant, folder):
    c = clusters(kind)
    folder.mkdir(parents=True, exist_ok=True)
    targets = [c.target("worker", i) for i in range(2)]
    return trainer.run(module, variant, trainer.Run(targets, 2, STEPS, str(folder), tasks=[0, 1]))


def agree(ours, theirs, rtol, what):
    """Arrays, or lists and dicts of them. Values near nothing are measured against the array's largest."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), what
        for k in theirs:
            agree(ours[k], theirs[k], rtol, f"{what} {k}")
    elif isinstance(theirs, (list, tuple)) and theirs and not np.isscalar(theirs[0]):
        assert len(ours) == len(theirs), what
        for i, (a, b) in enumerate(zip(ours, theirs)):
            agree(a, b, rtol, f"{what}[{i}]")
    else:
        a, b = np.asarray(ours), np.asarray(theirs)
        assert a.shape == b.shape and a.dtype == b.dtype, f"{what}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
        if b.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * (np.abs(b).max() if b.size else 0), err_msg=what)
        else:
            np.testing.assert_array_equal(a, b, err_msg=what)


def end(losses):
    return float(np.mean(losses[-8:]))


@pytest.mark.parametrize("module,variant,kind", list(cases()))
def test_program(clusters, results, tmp_path, module, variant, kind):
    key = module.__name__, variant
    if key not in results:
        results[key] = run(clusters, "tf", module, variant, tmp_path / "tf")
    theirs, ours = results[key], run(clusters, kind, module, variant, tmp_path / kind)
    noisy = variant in getattr(module, "NOISY", ())
    for got, who in ((theirs, "TensorFlow"), (ours, "Trainera")):
        losses = np.array(got["loss"])
        assert np.isfinite(losses).all() and end(losses) < 0.9 * np.mean(losses[:4]), f"{who} learns nothing: {losses}"
    assert abs(end(ours["loss"]) - end(theirs["loss"])) <= (0.25 if noisy else 0.01) * np.mean(theirs["loss"][:4])
    if noisy:
        return
    loose = getattr(module, "LOOSE", {}).get(variant, 1)
    np.testing.assert_allclose(ours["loss"][:20], theirs["loss"][:20], rtol=1e-4 * loose)
    agree(ours["values"], theirs["values"], 1e-3 * loose, "")
    if "summaries" in theirs:
        for i, (a, b) in enumerate(zip(ours["summaries"], theirs["summaries"])):
            same_summary(a, b, f"step {i}")


def same_summary(ours, theirs, what):
    """The protos, value by value: tags and metadata equal, numbers near, images by their pixels."""
    tf = trainer.tf
    a, b = tf.Summary.FromString(ours), tf.Summary.FromString(theirs)
    assert [v.tag for v in a.value] == [v.tag for v in b.value], what
    for v, w in zip(a.value, b.value):
        where = f"{what} {w.tag}"
        assert v.WhichOneof("value") == w.WhichOneof("value"), where
        assert v.metadata == w.metadata, where
        if w.HasField("histo"):
            h, i = v.histo, w.histo
            np.testing.assert_allclose([h.min, h.max, h.num, h.sum, h.sum_squares], [i.min, i.max, i.num, i.sum, i.sum_squares], rtol=1e-3, atol=1e-4, err_msg=where)
            # A value at a bucket's edge may fall on either side.
            assert abs(len(h.bucket) - len(i.bucket)) <= 2, where
        elif w.HasField("image"):
            assert (v.image.height, v.image.width, v.image.colorspace) == (w.image.height, w.image.width, w.image.colorspace), where
            pixels = [tf.Session().run(tf.image.decode_png(x.image.encoded_image_string)).astype(int) for x in (v, w)]
            assert np.abs(pixels[0] - pixels[1]).max() <= 1, where
        elif w.HasField("tensor"):
            x, y = tf.make_ndarray(v.tensor), tf.make_ndarray(w.tensor)
            agree(x, y, 1e-3, where) if y.dtype.kind == "f" else np.testing.assert_array_equal(x, y, err_msg=where)
        else:
            np.testing.assert_allclose(v.simple_value, w.simple_value, rtol=1e-3, atol=1e-6, err_msg=where)
