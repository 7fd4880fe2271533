#!/usr/bin/env python3
"""Compares our kernels with TensorFlow's, one op at a time, on thousands of small random cases.

    kernels.py [--quick] [--op REGEX] [--seed N] [--runop PATH] [--list] [-v]

A case is (op, inputs, attrs). Both sides run it: TensorFlow eagerly in this process, ours in tests/unit/runop.c. Value, dtype, shape and
error code must agree. How to add an op: a generator in cases_*.py that yields C("Op", inputs, attr=value).
"""
import argparse
import glob
import importlib
import os
import re
import struct
import subprocess
import sys
import time
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # tests/conftest.py says why
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import op_def_registry

HERE = os.path.dirname(os.path.abspath(__file__))
RTOL = {tf.float16: 2e-3, tf.bfloat16: 1.6e-2, tf.float32: 2e-6, tf.float64: 1e-12, tf.complex64: 4e-6, tf.complex128: 1e-11}


class Case:
    """tol, atol: relative and absolute tolerance; code: only this error code counts (when TensorFlow's own answer is not the one we follow);
    like: where TensorFlow has the op but no kernel for the case: another case, or a function that gives the outputs, with the same result."""

    def __init__(self, op, inputs, tol=None, atol=None, code=None, check=None, like=None, **attrs):
        self.op, self.inputs, self.attrs = op, inputs, attrs
        self.tol, self.atol, self.code, self.check, self.like = tol, atol, code, check, like

    def __repr__(self):
        def show(x):
            if isinstance(x, (list, tuple)):
                return "[" + ", ".join(map(show, x)) + "]"
            t = np.array2string(x, threshold=20).replace("\n", "")
            return "%s%s %s" % (x.dtype.name, list(x.shape), t)
        return "%s(%s%s)" % (self.op, ", ".join(map(show, self.inputs)), "".join(", %s=%r" % kv for kv in self.attrs.items()))


def attr_kind(t):
    return {"string": "s", "int": "i", "float": "f", "bool": "b", "type": "t", "shape": "h"}[t]


def type_name(t):
    n = tf.as_dtype(t).name
    return {"float16": "half", "float32": "float", "float64": "double"}.get(n, n)


def tf_dtype(x):
    return tf.string if x.dtype == object or x.dtype.kind in "SU" else tf.as_dtype(x.dtype)


def complete(case):
    """Attrs with kinds (in OpDef order), flat inputs, number of outputs."""
    d = op_def_registry.get(case.op)
    attrs = dict(case.attrs)
    flat = []
    for arg, x in zip(d.input_arg, case.inputs):
        xs = list(x) if isinstance(x, (list, tuple)) else [x]
        if arg.number_attr:
            attrs.setdefault(arg.number_attr, len(xs))
        if arg.type_list_attr:
            attrs.setdefault(arg.type_list_attr, [tf_dtype(v).as_datatype_enum for v in xs])
        elif arg.type_attr and xs:
            attrs.setdefault(arg.type_attr, tf_dtype(xs[0]).as_datatype_enum)
        flat += xs
    known, n_out = [], 0
    for a in d.attr:
        if a.name not in attrs:
            continue
        v = attrs[a.name]
        if a.type == "type" and isinstance(v, tf.DType):
            v = v.as_datatype_enum
        if a.type == "list(type)":
            v = [t.as_datatype_enum if isinstance(t, tf.DType) else t for t in v]
        known.append((a.name, a.type, v))
    vals = {n: v for n, _, v in known}
    defs = {a.name: a for a in d.attr}
    for o in d.output_arg:
        if o.number_attr:
            n_out += vals.get(o.number_attr, defs[o.number_attr].default_value.i)
        elif o.type_list_attr:
            n_out += len(vals[o.type_list_attr])
        else:
            n_out += 1
    return known, flat, n_out


def as_tensor(x):
    if tf_dtype(x) == tf.string:
        return tf.constant(x.tolist(), dtype=tf.string, shape=x.shape)
    return tf.constant(x)


def run_tf(case):
    known, flat, n_out = complete(case)
    have = {n for n, _, _ in known}
    # TensorFlow's eager mode does not fill in types; ours is sent what the case says, so that our defaults are tested.
    known += [(a.name, "type", a.default_value.type) for a in op_def_registry.get(case.op).attr
              if a.type == "type" and a.name not in have and a.HasField("default_value")]
    attrs = []
    for n, t, v in known:
        if t == "shape":
            v = None if v is None else [-1 if d is None else d for d in v]
        elif t == "list(shape)":
            v = [None if s is None else [-1 if d is None else d for d in s] for s in v]
        attrs += [n, v]
    try:
        outs = execute.execute(case.op.encode(), n_out, [as_tensor(x) for x in flat], tuple(attrs), context.context())
        return 0, "", [o.numpy() if o.dtype != tf.string else np.array(o.numpy(), dtype=object) for o in outs], [o.dtype for o in outs]
    except tf.errors.OpError as e:
        removed = re.search(r"not available in GraphDef version \d+. It has been removed in version (\d+)", e.message)
        return run_old(case, attrs, flat, n_out, int(removed[1]) - 1) if removed else (e.error_code, e.message, [], [])


def run_old(case, attrs, flat, n_out, version):
    """An op that only old graphs may have, in such a graph."""
    with tf.Graph().as_default() as g:
        ins = [tf.compat.v1.placeholder(tf_dtype(x)) for x in flat]
    graph = g.as_graph_def()
    node = graph.node.add(name="old", op=case.op, input=[x.op.name for x in ins])
    defs = {a.name: a for a in op_def_registry.get(case.op).attr}
    for name, v in zip(attrs[::2], attrs[1::2]):
        is_list = defs[name].type.startswith("list(")
        kind = {"string": "s", "int": "i", "float": "f", "bool": "b", "type": "type"}[defs[name].type[5:-1] if is_list else defs[name].type]
        values = [x.encode() if kind == "s" and isinstance(x, str) else x for x in (v if is_list else [v])]
        if is_list:
            getattr(node.attr[name].list, kind).extend(values)
        else:
            setattr(node.attr[name], kind, values[0])
    graph.versions.producer = version
    graph.versions.min_consumer = 0
    with tf.Graph().as_default() as g, tf.compat.v1.Session() as s:
        try:
            tf.import_graph_def(graph, name="")
            outs = s.run(["old:%d" % i for i in range(n_out)], {g.get_tensor_by_name(x.name): v for x, v in zip(ins, flat)})
            return 0, "", outs, [t.dtype for t in g.get_operation_by_name("old").outputs]
        except tf.errors.OpError as e:
            return e.error_code, e.message, [], []


class Ours:
    def __init__(self, path, threads=0):
        self.p = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "RUNOP_THREADS": str(threads)})

    @staticmethod
    def s(b):
        b = b.encode() if isinstance(b, str) else bytes(b)
        return struct.pack("<I", len(b)) + b

    @staticmethod
    def shape(v):
        if v is None:
            return struct.pack("<i", -1)
        return struct.pack("<i%dq" % len(v), len(v), *[-1 if d is None else d for d in v])

    def tensor(self, x):
        x = np.asarray(x)
        dt = tf_dtype(x)
        head = struct.pack("<I", dt.as_datatype_enum) + self.shape(x.shape)
        if dt == tf.string:
            return head + b"".join(self.s(v) for v in x.reshape(-1).tolist())
        return head + np.ascontiguousarray(x).tobytes()

    def value(self, kind, v):
        if kind == "s":
            return self.s(v)
        if kind == "h":
            return self.shape(v)
        return struct.pack({"i": "<q", "f": "<f", "b": "<B", "t": "<I"}[kind], v)

    def read(self, n):
        b = self.p.stdout.read(n)
        if len(b) != n:
            raise RuntimeError("runop ended with %s" % self.p.wait())
        return b

    def u32(self):
        return struct.unpack("<I", self.read(4))[0]

    def run(self, case):
        known, flat, _ = complete(case)
        b = self.s(case.op) + struct.pack("<I", len(known))
        for n, t, v in known:
            is_list = t.startswith("list(")
            kind = attr_kind(t[5:-1] if is_list else t)
            vs = v if is_list else [v]
            b += self.s(n) + kind.encode() + struct.pack("<BI", is_list, len(vs)) + b"".join(self.value(kind, x) for x in vs)
        b += struct.pack("<I", len(flat)) + b"".join(self.tensor(x) for x in flat)
        self.p.stdin.write(b)
        self.p.stdin.flush()
        code = self.u32()
        msg = self.read(self.u32()).decode("utf-8", "replace")
        outs, types = [], []
        for _ in range(self.u32()):
            dt = tf.as_dtype(self.u32())
            rank = struct.unpack("<i", self.read(4))[0]
            dims = struct.unpack("<%dq" % rank, self.read(8 * rank))
            n = int(np.prod(dims)) if dims else 1
            if dt == tf.string:
                a = np.empty(n, dtype=object)
                for i in range(n):
                    a[i] = self.read(self.u32())
            else:
                nd = np.dtype(dt.as_numpy_dtype)
                nd = nd[0] if nd.fields else nd  # quantised: what is stored
                a = np.frombuffer(self.read(n * nd.itemsize), dtype=nd)
            outs.append(a.reshape(dims))
            types.append(dt)
        return code, msg, outs, types

    def close(self):
        self.p.stdin.close()
        return self.p.wait()


def close_enough(a, b, dt, tol, atol):
    if dt == tf.string or dt == tf.bool or dt.is_integer or dt.is_quantized:
        return a.tolist() == b.tolist()
    tol = RTOL.get(dt, 1e-6) if tol is None else tol
    if dt == tf.bfloat16 or dt == tf.float16:
        a, b = a.astype(np.float32), b.astype(np.float32)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return False
    with np.errstate(all="ignore"):
        tiny = atol if atol is not None else 1e-37 if dt in (tf.float32, tf.complex64) else 1e-300 if dt != tf.float16 else 1e-7
        ok = (a == b) | np.isnan(a) | (np.abs(a - b) <= tol * np.abs(b) + tiny)
    return bool(np.all(ok))


WIDER = {tf.float16: tf.float32, tf.bfloat16: tf.float32}


def no_kernel(code, msg):
    """TensorFlow knows the op, but has nothing to run this case with: no kernel for the type, or one that says so itself, or an op that new graphs may not have."""
    return code == tf.errors.UNIMPLEMENTED or (code == tf.errors.NOT_FOUND and msg.startswith("Could not find device for node"))


def instead(case):
    """What TensorFlow gives for the case by another way: as the case says, with the next wider type, or (half of it at a time) for complex numbers."""
    if hasattr(case.like, "op"):
        return run_tf(case.like)
    if case.like:
        outs = [np.asarray(o) for o in case.like()]
        return 0, "", outs, [tf_dtype(o) for o in outs]

    def each(f):
        ins = [[f(x) for x in i] if isinstance(i, (list, tuple)) else f(i) for i in case.inputs]
        return Case(case.op, ins, **{k: WIDER.get(v, v) if isinstance(v, tf.DType) else v for k, v in case.attrs.items()})

    flat = [x for i in case.inputs for x in (i if isinstance(i, (list, tuple)) else [i])]
    if any(x.dtype.kind == "c" for x in flat):  # good for ops that only move values
        real, imag = (run_tf(each(lambda x: np.asarray(f(x)).astype(np.float64) if x.dtype.kind == "c" else x)) for f in (np.real, np.imag))
        if real[0]:
            return real
        return 0, "", [r + 1j * i for r, i in zip(real[2], imag[2])], [tf.complex128] * len(real[2])
    if not any(tf_dtype(x) in WIDER for x in flat):
        return None
    return run_tf(each(lambda x: x.astype(WIDER[tf_dtype(x)].as_numpy_dtype) if tf_dtype(x) in WIDER else x))


def compare(case, theirs, ours):
    code, msg, want, wt = theirs
    ocode, omsg, got, gt = ours
    if ocode >= 90:
        return "our kernel: %s" % omsg
    if case.code is not None and (case.code or ocode or not case.check):
        return None if ocode == case.code else "code %d (%s), expected %d" % (ocode, omsg, case.code)
    if no_kernel(code, msg) and ocode != tf.errors.UNIMPLEMENTED:  # we take more: it must be right all the same
        other = instead(case)
        if other is None or no_kernel(*other[:2]):
            return "TensorFlow cannot run it (%s), and the case does not say what it is like" % msg[:200]
        code, msg, want, wt = other
        if not code and not ocode:
            want, wt = [np.asarray(w).astype(g.dtype) for w, g in zip(want, got)], gt
    if code != ocode:
        return "TensorFlow: %s %s; ours: %s %s" % (code, msg[:200], ocode, omsg)
    if code:
        return None
    if case.check:
        return case.check(want, got)
    for i, (w, g, wd, gd) in enumerate(zip(want, got, wt, gt)):
        w = np.asarray(w)
        if wd != gd or w.shape != g.shape:
            return "output %d is %s%s, TensorFlow's %s%s" % (i, gd.name, g.shape, wd.name, w.shape)
        if not close_enough(g, w, wd, case.tol, case.atol):
            return "output %d:\n  ours       %s\n  TensorFlow %s" % (i, np.array2string(g, threshold=40), np.array2string(w, threshold=40))
    if len(want) != len(got):
        return "%d outputs, TensorFlow has %d" % (len(got), len(want))
    return None


def all_cases(seed, quick):
    """Each function has random numbers of its own: a case more in one changes nothing in the others."""
    sys.path.insert(0, HERE)
    for path in sorted(glob.glob(os.path.join(HERE, "cases_*.py"))):
        module = importlib.import_module(os.path.basename(path)[:-3])
        for name in sorted(dir(module)):
            if name.startswith("cases_"):
                yield from getattr(module, name)(np.random.RandomState(zlib.crc32(name.encode()) ^ seed), quick)


def find_runop():
    for d in (os.environ.get("TRAINERA_BUILD"), "build"):
        if d:
            p = os.path.join(d if os.path.isabs(d) else os.path.join(HERE, "..", "..", d), "tests", "unit", "runop")
            if os.path.exists(p):
                return p
    sys.exit("runop is not built: run make")


def run(quick=False, only=None, seed=1, runop=None, verbose=False, limit=40):
    """Number of cases, list of (case, complaint), ops seen."""
    # One thread; and several, among which even the smallest tensors are divided.
    sides = [(Ours(runop or find_runop(), threads), threads) for threads in (0, 3)]
    bad, n, ops, types = [], 0, {}, set()
    for case in all_cases(seed, quick):
        if only and not re.search(only, case.op):
            continue
        n += 1
        ops[case.op] = ops.get(case.op, 0) + 1
        types |= {(case.op, a, type_name(v)) for a, kind, v in complete(case)[0] if kind == "type"}
        if verbose:
            print(case, flush=True)
        theirs = run_tf(case) if case.code is None else None
        try:
            for ours, threads in sides:
                why = compare(case, theirs or (0, "", [], []), ours.run(case))
                if why:
                    bad.append((case, why + (" (%d threads)" % threads if threads else "")))
                    break
        except RuntimeError as e:
            bad.append((case, str(e)))
            break
        if len(bad) >= limit:
            break
    for ours, _ in sides:
        if ours.close():
            bad.append((None, "runop ended badly"))
    if os.environ.get("TRAINERA_OPS_PARITY"):  # for tools/ops-doc
        with open(os.environ["TRAINERA_OPS_PARITY"], "a") as f:
            f.write("".join(op + "\n" for op in ops))
    if os.environ.get("TRAINERA_TYPES_PARITY"):  # for tools/check-dtypes
        with open(os.environ["TRAINERA_TYPES_PARITY"], "w") as f:
            f.writelines("%s %s %s\n" % t for t in sorted(types))
    return n, bad, ops


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--op")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--runop")
    ap.add_argument("--limit", type=int, default=40)
    ap.add_argument("--list", action="store_true", help="print how many cases each op had")
    ap.add_argument("-v", action="store_true")
    a = ap.parse_args()
    t = time.time()
    n, bad, ops = run(a.quick, a.op, a.seed, a.runop, a.v, a.limit)
    for case, why in bad:
        print("FAIL", case, "\n ", why)
    if a.list:
        print(" ".join("%s:%d" % kv for kv in sorted(ops.items())))
    print("%d cases, %d ops, %d failures, %.1f s" % (n, len(ops), len(bad), time.time() - t))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
