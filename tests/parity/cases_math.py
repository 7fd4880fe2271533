"""Element-wise maths, comparison, reductions."""
import numpy as np
import tensorflow as tf

from kernels import Case as C

BF16 = tf.bfloat16.as_numpy_dtype
FLOATS = [np.float16, BF16, np.float32, np.float64]
INTS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
SIGNED = [np.int8, np.int16, np.int32, np.int64]
CPLX = [np.complex64, np.complex128]
REAL = FLOATS + INTS
NUM = REAL + CPLX
SHAPES = [(), (1,), (5,), (3, 4), (2, 3, 2), (0,), (2, 0, 3), (37,)]


def is_float(t):
    return t in FLOATS


def rand(rng, t, shape, lo=-5, hi=5):
    shape = tuple(shape)
    if t is np.bool_ or t is bool:
        return np.array(rng.rand(*shape) < 0.5)
    if t in (object, bytes, str):
        words = [b"", b"a", b"bc", b"hello world, longer than twelve", b"\x00\xff", b"abc"]
        a = np.empty(shape, dtype=object)
        for i in range(a.size):
            a.flat[i] = words[rng.randint(len(words))]
        return a
    if t in CPLX:
        return np.array(rng.uniform(lo, hi, shape) + 1j * rng.uniform(lo, hi, shape)).astype(t)
    if is_float(t):
        return np.array(rng.uniform(lo, hi, shape)).astype(t)
    if np.issubdtype(t, np.unsignedinteger):
        lo = max(lo, 0)
    return np.array(rng.randint(int(lo), int(hi) + 1, shape)).astype(t)


def specials(t):
    v = [0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, np.inf, -np.inf, np.nan, 1e-3, 100, -100]
    return np.array(v).astype(t)


def tol_for(t, f32=None, f64=None):
    return {np.float32: f32, np.float64: f64}.get(t)


# op: (types, lo, hi, test special values, relative tolerance for f32)
UNARY = {
    "Neg": (FLOATS + SIGNED + CPLX, -5, 5, True), "Abs": (FLOATS + SIGNED, -5, 5, True), "Sign": (FLOATS + SIGNED + CPLX, -2, 2, True),
    "Square": (NUM, -5, 5, True), "Sqrt": (FLOATS + CPLX, 0, 9, True), "Rsqrt": (FLOATS + CPLX, 0.1, 9, True),
    "Reciprocal": (FLOATS + CPLX, 0.1, 9, True), "Inv": (FLOATS + CPLX, 0.1, 9, True), "Exp": (FLOATS + CPLX, -9, 9, True),
    "Expm1": (FLOATS + CPLX, -3, 3, True), "Log": (FLOATS + CPLX, 0.01, 9, True), "Log1p": (FLOATS, -0.5, 9, True),
    "Sin": (FLOATS + CPLX, -4, 4, True), "Cos": (FLOATS + CPLX, -4, 4, True), "Tan": (FLOATS, -1.4, 1.4, True),
    "Tanh": (FLOATS + CPLX, -6, 6, True), "Sigmoid": (FLOATS + CPLX, -9, 9, True), "Asin": (FLOATS, -1, 1, False),
    "Acos": (FLOATS, -1, 1, False), "Atan": (FLOATS, -9, 9, True), "Asinh": (FLOATS, -9, 9, True), "Acosh": (FLOATS, 1, 9, False),
    "Atanh": (FLOATS, -0.9, 0.9, False), "Sinh": (FLOATS + CPLX, -4, 4, True), "Cosh": (FLOATS + CPLX, -4, 4, True),
    "Erf": (FLOATS, -3, 3, True), "Erfc": (FLOATS, -3, 3, True), "Lgamma": ([np.float32, np.float64], 0.1, 9, False),
    "Digamma": ([np.float32, np.float64], 0.1, 9, False),
    "Floor": (FLOATS, -5, 5, True), "Ceil": (FLOATS, -5, 5, True), "Round": (FLOATS + [np.int32, np.int64], -5, 5, True),
    "Rint": ([np.float32, np.float64], -5, 5, True), "IsNan": (FLOATS, -5, 5, True), "IsInf": (FLOATS, -5, 5, True),
    "IsFinite": (FLOATS, -5, 5, True), "LogicalNot": ([np.bool_], 0, 1, False), "Invert": (INTS, -100, 100, False),
    "Relu": (REAL, -5, 5, True), "Relu6": (REAL, -9, 9, True), "Elu": (FLOATS, -5, 5, True), "Selu": (FLOATS, -5, 5, True),
    "LeakyRelu": (FLOATS, -5, 5, True), "Softplus": (FLOATS, -20, 20, True), "Softsign": (FLOATS, -5, 5, False),
    "Conj": (CPLX, -5, 5, False),
}
LOOSE = {"Tan": 4e-6, "Digamma": 1e-4, "Lgamma": 2e-5, "Tanh": 4e-6, "Erfc": 2e-5, "Erf": 4e-6, "Softplus": 4e-6, "Sigmoid": 4e-6, "Selu": 4e-6,
         "Elu": 4e-6, "Expm1": 4e-6, "Asinh": 4e-6, "Acosh": 1e-5, "Atanh": 4e-6, "Sinh": 4e-6, "Cosh": 4e-6, "Log1p": 4e-6, "Acos": 1e-5}


def cases_unary(rng, quick):
    for op, (types, lo, hi, spec) in UNARY.items():
        for t in types:
            tol = LOOSE.get(op, 3e-6) if t in (np.float32,) else 2e-5 if t is np.complex64 else None
            if t is np.float64:
                tol = 1e-11
            if t in (np.float16, BF16) and op in ("Selu", "Softplus", "Sigmoid", "Tanh", "Elu", "Softsign", "Expm1", "Log1p", "Asinh", "Sinh", "Cosh", "Rsqrt"):
                tol = 8e-3 if t is np.float16 else 3e-2  # TensorFlow rounds in between
            atol = 2e-6 if op == "Digamma" and t is np.float32 else None  # it has a zero: nothing is exact beside it
            if op in ("Elu", "Selu") and is_float(t):  # TensorFlow takes exp(x) - 1, which cancels near 0
                atol = {np.float32: 4e-7, np.float64: 1e-15, np.float16: 4e-3, BF16: 3e-2}[t]
            for shape in (SHAPES if not quick else [(), (3, 4), (0,), (37,)]):
                yield C(op, [rand(rng, t, shape, lo, hi)], tol=tol, atol=atol)
            if spec and is_float(t) and t not in (BF16,):
                yield C(op, [specials(t)], tol=tol, atol=atol)
            if not quick and t in (np.float32, np.float64):
                yield C(op, [rand(rng, t, (5000,), lo, hi)], tol=tol, atol=atol)
    for a in (0.2, 0.0, 1.5):
        yield C("LeakyRelu", [rand(rng, np.float32, (9,))], alpha=a)
    for chain in (["Abs", "Sqrt"], ["Square", "Rsqrt", "Neg"], ["Neg"], ["Tanh", "Sigmoid", "Exp", "Log1p", "Relu"], ["Round", "Elu", "Selu", "Relu6"]):
        for t in (np.float16, np.float32, np.float64):
            for shape in ((), (0,), (7,), (33, 5)):
                yield C("_UnaryOpsComposition", [rand(rng, t, shape)], op_names=chain, tol=2e-2 if t == np.float16 else 1e-5, atol=2e-3 if t == np.float16 else 1e-5)
    yield C("_UnaryOpsComposition", [rand(rng, np.float32, (3,))], op_names=["Abs", "Nothing"])
    for op in ("ComplexAbs", "Real", "Imag", "Angle"):
        for t, o in ((np.complex64, tf.float32), (np.complex128, tf.float64)):
            yield C(op, [rand(rng, t, (3, 4))], Tout=o)
    yield C("Complex", [rand(rng, np.float32, (3, 1)), rand(rng, np.float32, (4,))], Tout=tf.complex64)
    yield C("Complex", [rand(rng, np.float64, (3,)), rand(rng, np.float64, ())], Tout=tf.complex128)


def cases_grads(rng, quick):
    both = {"ReluGrad": REAL, "Relu6Grad": REAL, "EluGrad": FLOATS, "SeluGrad": FLOATS, "LeakyReluGrad": FLOATS, "SoftplusGrad": FLOATS,
            "SoftsignGrad": FLOATS, "SigmoidGrad": FLOATS + CPLX, "TanhGrad": FLOATS + CPLX, "RsqrtGrad": FLOATS + CPLX,
            "SqrtGrad": FLOATS + CPLX, "ReciprocalGrad": FLOATS + CPLX, "InvGrad": FLOATS + CPLX}
    for op, types in both.items():
        for t in types:
            tol = 1e-5 if t in (np.float32, np.complex64) else 1e-11 if t in (np.float64, np.complex128) else 4e-2 if t is BF16 else 2e-2
            for shape in ((), (5,), (3, 4), (0, 2)) if quick else SHAPES:
                if op in ("TanhGrad", "SigmoidGrad") and is_float(t):  # y is tanh or sigmoid of something: 1 - y² must not cancel
                    y = rand(rng, t, shape, -0.9, 0.9)
                    yield C(op, [y, rand(rng, t, shape)], tol=tol)
                else:
                    yield C(op, [rand(rng, t, shape), rand(rng, t, shape, -7, 7)], tol=tol)
        t = types[2]
        yield C(op, [rand(rng, t, (3,)), rand(rng, t, (4,))])
        yield C(op, [rand(rng, t, (3,)), rand(rng, t, (1,))])
    yield C("LeakyReluGrad", [rand(rng, np.float32, (9,)), rand(rng, np.float32, (9,))], alpha=0.5)


BINARY = {
    "Add": FLOATS + SIGNED + [np.uint8, object] + CPLX, "AddV2": NUM, "Sub": NUM, "Mul": NUM, "MulNoNan": FLOATS + CPLX, "Div": NUM,
    "RealDiv": FLOATS + CPLX, "FloorDiv": REAL, "FloorMod": REAL, "Mod": [np.float32, np.float64, np.int32, np.int64], "TruncateDiv": INTS,
    "TruncateMod": [np.float32, np.float64, np.int32, np.int64], "DivNoNan": FLOATS + CPLX, "Xdivy": FLOATS + CPLX, "Xlogy": FLOATS + CPLX, "Xlog1py": FLOATS + CPLX,
    "Maximum": REAL, "Minimum": REAL, "Pow": FLOATS + SIGNED + CPLX, "SquaredDifference": FLOATS + [np.int32, np.int64] + CPLX, "Atan2": FLOATS,
    "Equal": NUM + [np.bool_, object], "NotEqual": NUM + [np.bool_, object], "Less": REAL, "LessEqual": REAL, "Greater": REAL, "GreaterEqual": REAL,
    "LogicalAnd": [np.bool_], "LogicalOr": [np.bool_], "BitwiseAnd": INTS, "BitwiseOr": INTS, "BitwiseXor": INTS,
    "LeftShift": INTS, "RightShift": INTS, "NextAfter": [np.float32, np.float64], "ApproximateEqual": [np.float32, np.float64],
}
PAIRS = [((), ()), ((4,), ()), ((), (4,)), ((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (4,)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)), ((2, 1, 4), (3, 1)),
         ((1, 3, 1, 2), (2, 1, 4, 1)), ((0,), (1,)), ((0, 3), (3,)), ((2, 3, 4, 2), (3, 1, 2)), ((1,), (1, 1)), ((5, 1, 1), (1,)), ((2, 1), (2, 7))]
BAD_PAIRS = [((3,), (4,)), ((2, 3), (3, 2)), ((0,), (2,))]


def cases_binary(rng, quick):
    for op, types in BINARY.items():
        for t in types:
            tol = None
            lo, hi = -5, 5
            if op in ("Pow", "Xlogy", "Xlog1py"):
                lo = 0.1 if is_float(t) else 0
                tol = 1e-5 if t is np.float32 else 1e-11 if t is np.float64 else None
            if t in CPLX:
                tol = 1e-4 if t is np.complex64 else 1e-10
            if op == "Atan2":
                tol = 1e-5 if t is np.float32 else None
            zero_ok = not (op in ("Div", "FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod") and t in INTS)
            pairs = PAIRS if not quick else [PAIRS[i] for i in (0, 1, 2, 3, 4, 5, 7, 10, 12)]
            for sa, sb in pairs:
                if op == "ApproximateEqual":
                    sb = sa
                a, b = rand(rng, t, sa, lo, hi), rand(rng, t, sb, lo, hi)
                if op == "Pow" and t in SIGNED:
                    a, b = rand(rng, t, sa, -3, 3), rand(rng, t, sb, 0, 5)
                if op.endswith("Shift"):
                    b = rand(rng, t, sb, 0, np.dtype(t).itemsize * 8 - 1)
                if not zero_ok:
                    b = np.where(b == 0, np.array(1, t), b).astype(t)
                if op in ("Equal", "NotEqual", "LessEqual", "GreaterEqual") and t not in (object, np.bool_):
                    a, b = (np.round(v).astype(t) for v in (a, b))
                yield C(op, [a, b], tol=tol)
        t = types[0] if len(types) < 3 else types[2]
        for sa, sb in BAD_PAIRS:
            yield C(op, [rand(rng, t, sa, 1, 5), rand(rng, t, sb, 1, 5)])
        if np.float32 in types and op not in ("NextAfter", "Pow", "Atan2", "ApproximateEqual"):
            s = specials(np.float32)
            a, b = np.repeat(s, len(s)), np.tile(s, len(s))
            tol = 1e-5 if op in ("Xlogy", "Xlog1py") else None
            yield C(op, [a, b], tol=tol)
    for t, tiny in ((np.float32, 1e-40), (np.float64, 1e-310)):  # subnormal numbers are zero, given and made
        x = np.array([tiny, -tiny, 1, 0], t)
        for op in ("Greater", "Less", "Equal", "NotEqual"):
            yield C(op, [x, np.zeros(4, t)])
        half = np.array(np.sqrt(np.finfo(t).tiny) / 4, t)
        yield C("Mul", [np.full(5, half), np.full(5, half)])
        yield C("Sub", [np.full(3, np.finfo(t).tiny * t(1.5)), np.full(3, np.finfo(t).tiny)])
    for op in ("Div", "FloorDiv", "FloorMod", "TruncateDiv", "Mod", "TruncateMod"):
        for t in (np.int32, np.int64):
            code = 3 if op.startswith("Trunc") else None  # TensorFlow says INTERNAL there
            yield C(op, [rand(rng, t, (4,)), np.array([1, 0, 2, 3], t)], code=code)
            yield C(op, [rand(rng, t, (4,)), np.array(0, t)], code=code)
            if op != "TruncateDiv":
                yield C(op, [np.array([-7, 7, -7, 7, 6, -6], t), np.array([2, -2, -2, 2, -3, 3], t)])
    yield C("Pow", [np.array([2], np.int32), np.array([-1], np.int32)])
    for t in (np.float16, BF16):  # two steps, each of which rounds
        for op in ("SquaredDifference", "Xlogy", "Xlog1py"):
            yield C(op, [rand(rng, t, (700,), -20, 20), rand(rng, t, (700,), 0.01, 20)], tol=0)
            yield C(op, [rand(rng, t, (7, 1), -20, 20), rand(rng, t, (9,), 0.01, 20)], tol=0)
    for op, lo in (("Equal", False), ("NotEqual", True)):
        for e in (True, False):
            yield C(op, [rand(rng, np.float32, (3,)), rand(rng, np.float32, (4,))], incompatible_shape_error=e)
    yield C("FloorMod", [rand(rng, np.float32, (300,), -20, 20), rand(rng, np.float32, (300,), -7, 7)], tol=1e-4)
    if not quick:
        for op in ("AddV2", "Mul", "Maximum", "Less", "RealDiv"):
            yield C(op, [rand(rng, np.float32, (300, 700)), rand(rng, np.float32, (700,))])
            yield C(op, [rand(rng, np.float32, (300, 700)), rand(rng, np.float32, (300, 1))])


def cases_addn(rng, quick):
    for t in NUM:
        for n in (1, 2, 3, 9):
            for shape in ((), (3, 4), (0,), (1300,)):
                yield C("AddN", [[rand(rng, t, shape) for _ in range(n)]], tol=2e-5, atol=0.5 if t is BF16 else 0.06 if t is np.float16 else 1e-5)
    yield C("AddN", [[rand(rng, np.float32, (3,)), rand(rng, np.float32, (4,))]])


def axes_of(rng, rank):
    n = rng.randint(0, rank + 1)
    a = rng.permutation(rank)[:n]
    return np.array([x - rank if rng.rand() < 0.3 else x for x in a], np.int64)


def cases_reduce(rng, quick):
    rank_shapes = [(), (1,), (7,), (3, 4), (4, 1, 3), (2, 3, 4), (3, 2, 2, 3), (2, 3, 2, 2, 3), (0,), (3, 0), (0, 3), (2, 0, 2), (1, 1)]
    for op, types in (("Sum", NUM), ("Mean", NUM), ("Prod", NUM), ("Max", REAL), ("Min", REAL), ("All", [np.bool_]), ("Any", [np.bool_])):
        for t in types:
            atol = None if t in INTS or t is np.bool_ else {np.float16: 0.06, BF16: 0.5}.get(t, 2e-6 if t in (np.float32, np.complex64) else 1e-13)
            for shape in rank_shapes if not quick else rank_shapes[::2]:
                for _ in range(1 if quick else 4):
                    x = rand(rng, t, shape, 1 if op == "Prod" else -5, 2 if op == "Prod" else 5)
                    ax = axes_of(rng, len(shape))
                    if op == "Mean" and t in INTS and 0 in shape:
                        continue  # TensorFlow divides by zero there
                    yield C(op, [x, ax.astype(rng.choice([np.int32, np.int64]))], keep_dims=bool(rng.rand() < 0.4), atol=atol,
                            tol=1e-5 if t in CPLX else 5e-2 if t is BF16 else None)
        t = types[2] if len(types) > 2 else types[0]
        for ax in ([2], [-3], [0, 0], [0, -2]):
            yield C(op, [rand(rng, t, (2, 3)), np.array(ax, np.int32)])
        yield C(op, [rand(rng, t, (2, 3)), np.array(1, np.int32)])
    for t in (np.float32, np.float64):
        for op in ("Max", "Min"):
            yield C(op, [specials(t), np.array([0], np.int32)])
            yield C(op, [specials(t)[:10], np.array([0], np.int32)])
        for shape, ax in (((100000,), [0]), ((1000, 300), [0]), ((1000, 300), [1]), ((20, 100, 50), [1]), ((700000,), [0]), ((30, 20, 30, 20), [0, 2])):
            if quick and np.prod(shape) > 400000:
                continue
            x = rand(rng, t, shape, 0, 1)
            for op in ("Sum", "Mean", "Max"):
                yield C(op, [x, np.array(ax, np.int32)], tol=2e-6 if t is np.float32 else 1e-12)
    for t in FLOATS:
        for shape in ((), (7,), (300,), (0,), (3, 4), (3000,)):
            yield C("L2Loss", [rand(rng, t, shape, -1, 1)], tol=1e-5 if t is np.float32 else 6e-2 if t in (BF16, np.float16) else None)


def cases_argmax(rng, quick):
    for op in ("ArgMax", "ArgMin"):
        for t in REAL + [np.bool_]:
            for shape in ((5,), (3, 4), (2, 3, 4), (1,), (0, 3), (3, 0)):
                ax = rng.randint(-len(shape), len(shape))
                yield C(op, [rand(rng, t, shape), np.array(ax, np.int32)], output_type=tf.int64 if rng.rand() < 0.5 else tf.int32)
        yield C(op, [rand(rng, np.float32, ()), np.array(0, np.int32)])
        yield C(op, [rand(rng, np.float32, (2, 3)), np.array(2, np.int32)])
        yield C(op, [rand(rng, np.float32, (2, 3)), np.array([1], np.int64)])
    yield C("ArgMax", [rand(rng, np.float32, (2, 3)), np.array(1, np.int32)], output_type=tf.int16)
    yield C("ArgMax", [rand(rng, np.float32, (2, 3)), np.array(1, np.int32)], output_type=tf.uint16)


def cases_cumulate(rng, quick):
    for op in ("Cumsum", "Cumprod"):
        for t in NUM:
            for shape in ((5,), (3, 4), (2, 3, 4), (0, 3), (1,)):
                for e in (False, True):
                    for r in (False, True):
                        ax = rng.randint(-len(shape), len(shape))
                        yield C(op, [rand(rng, t, shape, -2, 2), np.array(ax, np.int32)], exclusive=e, reverse=r,
                                tol=1e-5, atol=0.2 if t is BF16 else 0.03 if t is np.float16 else 1e-5)
        yield C(op, [rand(rng, np.float32, ()), np.array(0, np.int32)])
        yield C(op, [rand(rng, np.float32, (2,)), np.array(1, np.int32)])
