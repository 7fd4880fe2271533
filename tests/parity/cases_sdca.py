"""Dual coordinate ascent. TensorFlow goes through a batch in an order that it draws anew each time: batches of one example, and of examples that share no weights, come out the same in any."""
import numpy as np

from cases_data import i64, strs
from kernels import Case as C

LOSSES = ("logistic_loss", "squared_loss", "hinge_loss", "smooth_hinge_loss", "poisson_loss")


def f32(v):
    return np.array(v, np.float32)


def optimizer(rng, loss, n, sparse, dense, values=True, l1=0.0, l2=1.0, partitions=1, state=None, name="SdcaOptimizer", label=None, weight=None, **attrs):
    """sparse: entries per example and column, each with weights of its own; dense: sizes of columns (for one example)."""
    ex = [i64(np.repeat(np.arange(n), k)) for k in sparse]
    ft = [i64(np.arange(n * k) * 3 + 5) for k in sparse]
    with_values = len(sparse) if values is True else int(values)
    y = rng.randint(0, 2, n) if label is None else label
    inputs = [ex, ft, [f32(rng.standard_normal(n * k)) for k in sparse][:with_values], [f32(rng.standard_normal((n, k))) for k in dense],
              f32(rng.uniform(0.5, 2, n) if weight is None else weight), f32(y), [i64(np.arange(n * k)[::-1] * 3 + 5) for k in sparse], [f32(rng.standard_normal(n * k)) for k in sparse],
              [f32(rng.standard_normal(k)) for k in dense], f32(np.zeros((n, 4)) if state is None else state)]
    return C(name, inputs, tol=1e-4, atol=1e-5, loss_type=loss, num_sparse_features=len(sparse), num_sparse_features_with_values=with_values, num_dense_features=len(dense), l1=l1, l2=l2,
             num_loss_partitions=partitions, num_inner_iterations=1, **attrs)


def cases_sdca(rng, quick):
    for loss in LOSSES:
        for n, sparse, dense in ((1, [2], []), (1, [], [3]), (1, [3, 1], [2, 5]), (7, [2], []), (40, [1, 3], []), (5, [0, 2], []), (0, [1], [])):
            for l1, l2, partitions in ((0.0, 1.0, 1), (0.5, 2.0, 1), (0.1, 0.3, 4)):
                yield optimizer(rng, loss, n, sparse, dense, l1=l1, l2=l2, partitions=partitions)
        yield optimizer(rng, loss, 6, [2, 1], [], values=False)
        yield optimizer(rng, loss, 6, [2, 1], [], values=1)
        st = np.zeros((6, 4))
        y = rng.randint(0, 2, 6)
        st[:, 0] = rng.uniform(0.1, 0.9, 6) * (2 * y - 1 if loss != "poisson_loss" else -1)
        yield optimizer(rng, loss, 6, [2], [], state=st, label=y, l1=0.2)
        yield optimizer(rng, loss, 6, [2], [], state=st, label=y, name="SdcaOptimizerV2")
        yield optimizer(rng, loss, 1, [2], [3], name="SdcaOptimizerV2", adaptive=True)
        yield optimizer(rng, loss, 1, [2], [3], adaptative=True)
        yield optimizer(rng, loss, 3, [1], [], label=[0, 2, 1])
        yield optimizer(rng, loss, 3, [1], [], label=[0, -1, 1])
        yield optimizer(rng, loss, 3, [1], [], label=[0.5, 3.25, 7])


def cases_sdca_errors(rng, quick):
    loss = "squared_loss"
    yield optimizer(rng, loss, 3, [1], [], state=np.zeros((3, 3)))
    yield optimizer(rng, loss, 3, [1], [], state=np.zeros((2, 4)))
    yield optimizer(rng, loss, 3, [1], [], state=np.zeros(12))
    yield optimizer(rng, loss, 3, [1], [], label=[0, 1])

    def broken(change, dense=(), **kw):
        c = optimizer(rng, loss, 3 if not dense else 1, [2], list(dense), **kw)
        change(c.inputs)
        return c

    def put(i, v):
        return lambda x: x[i].__setitem__(0, v)

    yield broken(put(1, i64([5, 8, 11])))            # fewer features than examples
    yield broken(put(1, i64([5, 8, 11, 14, 17, 99])))  # a feature without a weight
    yield broken(put(1, i64([5, 5, 11, 14, 17, 20])))  # one twice
    yield broken(put(0, i64([0, 0, 2, 2, 1, 1])))    # out of order: the rest is nobody's
    yield broken(put(3, f32([1, 2])), dense=[2])     # no matrix
    yield broken(put(3, f32([[1, 2, 3]])), dense=[2])  # more than weights
    c = broken(put(3, f32([[1]])), dense=[2])        # TensorFlow reads past their end
    c.code = 3
    c.like = lambda: None
    yield c


def cases_fprint(rng, quick):
    sizes = [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 63, 64, 65, 100, 127, 128, 129, 143, 144, 145, 160, 175, 176, 200, 255, 256, 271, 272, 273, 300, 400, 1000]
    yield C("SdcaFprint", [strs([bytes(rng.randint(0, 256, n).tolist()) for n in sizes])])
    yield C("SdcaFprint", [strs([b"key%d" % i for i in range(50)])])
    yield C("SdcaFprint", [strs([])])
    yield C("SdcaFprint", [strs([b"a"]).reshape(1, 1)])
