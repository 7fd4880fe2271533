"""Every op that updates a variable: reference and resource, dense, sparse and scattered, several steps, against TensorFlow's own session."""
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_library, op_def_registry

import both

tf1 = tf.compat.v1
SHAPE = (6, 3)
SCALARS = dict(lr=0.1, alpha=0.1, beta1=0.9, beta2=0.95, epsilon=1e-3, momentum=0.8, rho=0.9, decay=0.9, l1=0.01, l2=0.02, l2_shrinkage=0.03, lr_power=-0.5,
               beta1_power=0.8, beta2_power=0.7, logbase=1.5, sign_decay=0.9, beta=0.9, learning_rate=0.1)

DENSE = """ApplyAdaMax ApplyAdadelta ApplyAdagrad ApplyAdagradDA ApplyAdagradV2 ApplyAdam ApplyAddSign ApplyCenteredRMSProp ApplyFtrl ApplyFtrlV2 ApplyGradientDescent
ApplyMomentum ApplyPowerSign ApplyProximalAdagrad ApplyProximalGradientDescent ApplyRMSProp""".split()
SPARSE = """SparseApplyAdadelta SparseApplyAdagrad SparseApplyAdagradDA SparseApplyAdagradV2 SparseApplyCenteredRMSProp SparseApplyFtrl SparseApplyFtrlV2 SparseApplyMomentum
SparseApplyProximalAdagrad SparseApplyProximalGradientDescent SparseApplyRMSProp""".split()
ONLY_RESOURCE = ["ResourceApplyAdamWithAmsgrad", "ResourceApplyKerasMomentum", "ResourceSparseApplyKerasMomentum"]
SCATTER = [a + b for a in ("", "Resource") for b in "ScatterAdd ScatterSub ScatterMul ScatterDiv ScatterMin ScatterMax ScatterUpdate".split()]
SCATTER_ND = [a + b for a in ("", "Resource") for b in "ScatterNdAdd ScatterNdSub ScatterNdMin ScatterNdMax ScatterNdUpdate".split()]
ASSIGN = ["Assign", "AssignAdd", "AssignSub", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"]
OPS = DENSE + ["Resource" + o for o in DENSE] + SPARSE + ["Resource" + o for o in SPARSE] + ONLY_RESOURCE + SCATTER + SCATTER_ND + ASSIGN


def inputs_of(op, d, dtype, resource, rng):
    """An input for every argument of the op, and its variables."""
    ins, variables = {}, []
    n = 4
    for a in d.input_arg:
        if a.is_ref or a.type == tf.resource.as_datatype_enum:
            value = rng.uniform(0.2, 1.5, SHAPE)
            v = tf1.get_variable(f"v{len(variables)}", initializer=tf.constant(value, dtype), use_resource=resource)
            variables.append(v)
            ins[a.name] = v.handle if resource else v._ref()
        elif a.name == "indices":
            i = np.array([4, 0, 4, 2], np.int64 if resource else np.int32)  # one twice
            if op.replace("Resource", "").startswith("ScatterNd"):
                i = i[:, None]
            elif "Sparse" in op:
                i = np.array([4, 0, 5, 2], i.dtype)
            ins[a.name] = i
        elif a.name == "global_step":
            ins[a.name] = tf.constant(5, tf.int64)
        elif a.name in ("grad", "updates", "value", "delta"):
            rows = n if "Sparse" in op or "Scatter" in op else SHAPE[0]
            g = rng.uniform(-1, 1, (rows, SHAPE[1]))
            ins[a.name] = tf.constant(np.where(np.abs(g) < 0.1, 0.5, g), dtype)
        else:
            ins[a.name] = tf.constant(SCALARS[a.name], dtype)
    return ins, variables


@pytest.mark.parametrize("op", OPS)
def test_update(shared, op):
    target = shared.target("worker")
    d = op_def_registry.get(op)
    resource = "Resource" in op or op.endswith("VariableOp")
    flags = [a.name for a in d.attr if a.type == "bool" and a.name in ("use_nesterov", "update_slots", "multiply_linear_by_lr")]
    for dtype in (tf.float32, tf.float64):
        for on in (False, True) if flags else (False,):
            tf1.reset_default_graph()
            rng = np.random.RandomState(3)
            with tf1.variable_scope("%s_%s_%d" % (op, dtype.name, on)):
                ins, variables = inputs_of(op, d, dtype, resource, rng)
            attrs = {f: on for f in flags}
            if any(a.name == "use_locking" for a in d.attr):
                attrs["use_locking"] = not on
            if any(a.name == "validate_shape" for a in d.attr):
                attrs["validate_shape"] = True
            out = op_def_library.apply_op(op, **ins, **attrs)
            step = out.op if hasattr(out, "op") else out
            with tf1.control_dependencies([step]):
                after = [tf.identity(v.read_value()) for v in variables]
            # Sums of few terms in another order: a few ulps of the largest term.
            both.same(target, after, before=[tf1.global_variables_initializer()], times=3, rtol=3e-6 if dtype == tf.float32 else 1e-13, atol=1e-7 if dtype == tf.float32 else 1e-15)


def test_bad_updates(shared):
    """Shapes and indices that do not fit: TensorFlow's error codes, and the variable is as it was."""
    target = shared.target("worker")
    tf1.reset_default_graph()
    v = tf1.get_variable("bad", initializer=tf.ones(SHAPE), use_resource=True)
    acc = tf1.get_variable("bad_acc", initializer=tf.ones(SHAPE), use_resource=True)
    init = tf1.global_variables_initializer()
    x = tf1.placeholder(tf.float32)
    i = tf1.placeholder(tf.int64)
    raw = tf.raw_ops
    cases = [
        (raw.ResourceApplyGradientDescent(var=v.handle, alpha=0.1, delta=x), {x: np.ones((2, 3))}),
        (raw.ResourceApplyGradientDescent(var=v.handle, alpha=x, delta=tf.ones(SHAPE)), {x: [1.0, 2.0]}),
        (raw.ResourceApplyAdagrad(var=v.handle, accum=acc.handle, lr=0.1, grad=x), {x: np.ones(3)}),
        (raw.ResourceSparseApplyAdagrad(var=v.handle, accum=acc.handle, lr=0.1, grad=tf.ones((2, 3)), indices=i), {i: [0, 6]}),
        (raw.ResourceSparseApplyAdagrad(var=v.handle, accum=acc.handle, lr=0.1, grad=tf.ones((2, 3)), indices=i), {i: [0, -1]}),
        (raw.ResourceSparseApplyAdagrad(var=v.handle, accum=acc.handle, lr=0.1, grad=tf.ones((2, 3)), indices=i), {i: [0, 1, 2]}),
        (raw.ResourceScatterAdd(resource=v.handle, indices=i, updates=tf.ones((2, 3))), {i: [1, 6]}),
        (raw.ResourceScatterNdUpdate(ref=v.handle, indices=i, updates=tf.ones((1, 3))), {i: [[9]]}),
        (raw.AssignAddVariableOp(resource=v.handle, value=x), {x: np.ones((3, 3))}),
    ]
    for op, feed in cases:
        both.same(target, op, feed, before=[init], times=1)
    both.same(target, tf.reduce_sum(v), before=[init])


def test_rows_named_often_are_updated_in_order(shared):
    """Enough rows for several threads, most of them named more than once: as if one thread went through the indices."""
    tf1.reset_default_graph()
    rng = np.random.RandomState(5)
    rows, n, width = 1000, 4096, 64
    ids, grad = rng.randint(0, rows, n), rng.uniform(-1, 1, (n, width)).astype(np.float32)
    v = tf1.get_variable("often", initializer=tf.ones((rows, width)), use_resource=True)
    acc = tf1.get_variable("often_acc", initializer=tf.fill((rows, width), 0.1), use_resource=True)
    step = tf.raw_ops.ResourceSparseApplyAdagrad(var=v.handle, accum=acc.handle, lr=0.1, grad=grad, indices=ids)
    want, sums = np.ones((rows, width), np.float32), np.full((rows, width), 0.1, np.float32)
    with tf1.Session(shared.target("worker")) as s:
        s.run(tf1.global_variables_initializer())
        for _ in range(3):
            s.run(step)
            for i, g in zip(ids, grad):
                sums[i] += g * g
                want[i] -= np.float32(0.1) * g / np.sqrt(sums[i])
        np.testing.assert_allclose(s.run(acc), sums, rtol=1e-6)
        np.testing.assert_allclose(s.run(v), want, rtol=1e-5, atol=1e-6)
