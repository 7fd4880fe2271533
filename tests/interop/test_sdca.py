"""Linear models by dual coordinate ascent: TensorFlow's order of the examples is random, so it is the optimum that must be the same."""
import numpy as np
import pytest
import tensorflow as tf

import both
from test_raw_datasets import W0, op, target  # noqa: F401 (target is a fixture)

tf1 = tf.compat.v1
N = 60


def train(target, loss, adaptive, l1, steps):
    """Weights and mean primal loss after so many passes over one batch."""
    rng = np.random.RandomState(3)
    x = rng.standard_normal((N, 4)).astype(np.float32)
    ids = rng.randint(0, 9, N)
    score = x @ np.array([1, -2, 0.5, 0], np.float32) + (ids - 4) * 0.5
    y = {"squared_loss": score, "poisson_loss": np.floor(np.exp(score / 4))}.get(loss, (score > 0)).astype(np.float32)
    with tf.Graph().as_default(), tf1.device(W0 if target else None):
        state = tf1.placeholder(tf.float32, [N, 4])
        wd, ws = tf1.get_variable("wd", [4], initializer=tf1.zeros_initializer(), use_resource=False), tf1.get_variable("ws", [9], initializer=tf1.zeros_initializer(), use_resource=False)
        out, ds, dd = op("SdcaOptimizerV2", sparse_example_indices=[np.arange(N)], sparse_feature_indices=[ids.astype(np.int64)], sparse_feature_values=[np.ones(N, np.float32)], dense_features=[x],
                         example_weights=np.ones(N, np.float32), example_labels=y, sparse_indices=[np.arange(9)], sparse_weights=[ws], dense_weights=[wd], example_state_data=state, loss_type=loss,
                         l1=l1, l2=3.0, num_loss_partitions=1, num_inner_iterations=1, adaptive=adaptive)
        with tf1.control_dependencies([out]):
            update = [wd.assign_add(dd[0]), ws.assign_add(ds[0])]
        shrink = op("SdcaShrinkL1", weights=[wd.op.outputs[0], ws.op.outputs[0]], l1=l1, l2=3.0)
        with tf1.Session(target) as s:
            s.run([wd.initializer, ws.initializer])
            now = np.zeros((N, 4), np.float32)
            for _ in range(steps):
                now, _ = s.run([out, update], {state: now})
            s.run(shrink)
            return s.run([wd, ws]), now[:, 1].mean(), now[:, 3]


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("loss", ["logistic_loss", "squared_loss", "hinge_loss", "smooth_hinge_loss", "poisson_loss"])
@pytest.mark.parametrize("l1", [0.0, 1.5])
def test_same_optimum(target, loss, adaptive, l1):
    steps = 400 if loss == "hinge_loss" else 120
    ours, theirs = train(target, loss, adaptive, l1, steps), train("", loss, False, l1, steps)  # the same optimum, adaptive or not
    np.testing.assert_allclose(ours[1], theirs[1], rtol=0.06 if adaptive else 2e-3)  # losses are of an example's last turn, which may be long ago
    if loss != "hinge_loss":
        for a, b in zip(ours[0], theirs[0]):
            np.testing.assert_allclose(a, b, atol=2e-3)
    visited = ours[2] != 0  # the example's weight, once it had its turn; examples that change nothing are drawn so rarely that one may never have had it
    assert visited.all() or (adaptive and visited.mean() > 0.9)
    np.testing.assert_array_equal(ours[2][visited], theirs[2][visited])


def test_shrink(target):
    def build(t):
        with tf.Graph().as_default(), tf1.device(W0 if t else None):
            a = tf1.get_variable("a", initializer=[[0.5, -0.2, 0.0], [-3.0, 0.25, 7.0]], use_resource=False)
            b = tf1.get_variable("b", initializer=[0.1, -0.0, -1.0], use_resource=False)
            late = tf1.get_variable("late", initializer=[1.0], use_resource=False)
            refs = [v.op.outputs[0] for v in (a, b)]
            return both.run(t, [op("SdcaShrinkL1", weights=refs, l1=0.5, l2=2.0), a, b][:1], before=[[a.initializer, b.initializer]]), \
                both.run(t, op("SdcaShrinkL1", weights=refs + [late.op.outputs[0]], l1=0.5, l2=2.0), before=[[a.initializer, b.initializer]]), \
                both.run(t, [a, b], before=[[a.initializer, b.initializer], op("SdcaShrinkL1", weights=refs, l1=0.5, l2=2.0)])

    for x, y in zip(build(target), build("")):
        both.agree(x, y)
