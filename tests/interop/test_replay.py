"""Whole conversations that real TensorFlow clients had with real TensorFlow servers (1.15.5, 2.15.1, 2.21.0), replayed byte by byte on ours: every answer must say the same.

Only what a server chooses itself is put in its place: session and partial-run handles. A conversation: a graph over ps and worker, feeds and fetches, an
extension, a traced step, a partial run, a failing op, close, reset.
"""
import csv
import pathlib

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

DATA = pathlib.Path(__file__).resolve().parent / "data"


def varint(b, i):
    v = shift = 0
    while True:
        v |= (b[i] & 0x7F) << shift
        shift += 7
        i += 1
        if not b[i - 1] & 0x80:
            return v, i


def enc(v):
    out = b""
    while v >= 0x80:
        out += bytes([v & 0x7F | 0x80])
        v >>= 7
    return out + bytes([v])


def fields(b):
    """[(number, wire type, value)] of one message."""
    i, out = 0, []
    while i < len(b):
        tag, i = varint(b, i)
        if tag & 7 == 0:
            v, i = varint(b, i)
        elif tag & 7 == 2:
            n, i = varint(b, i)
            v, i = b[i:i + n], i + n
        else:
            n = 8 if tag & 7 == 1 else 4
            v, i = b[i:i + n], i + n
        out.append((tag >> 3, tag & 7, v))
    return out


def join(fs):
    out = b""
    for number, kind, v in fs:
        out += enc(number << 3 | kind) + (enc(v) if kind == 0 else enc(len(v)) + v if kind == 2 else v)
    return out


def get(b, number, default=b""):
    return next((v for n, _, v in fields(b) if n == number), default)


def conversation(name):
    """The client's calls: (method, request, response)."""
    raw = (DATA / (name + ".msgs")).read_bytes()
    calls = {}
    for row in csv.DictReader(open(DATA / (name + ".tsv")), delimiter="\t"):
        if row["caller"] == "client":
            at, n = int(row["offset"]), int(row["length"])
            calls.setdefault(int(row["call"]), {"method": row["method"]})[row["dir"]] = raw[at:at + n]
    return [calls[k] for k in sorted(calls)]


def tensors(run_step_response):
    out = {}
    for number, _, v in fields(run_step_response):
        if number == 1:
            out[get(v, 1).decode()] = tf.make_ndarray(tensor_pb2.TensorProto.FromString(get(v, 2)))
    return out


@pytest.mark.asan
@pytest.mark.parametrize("name", ["tf115_client", "tf215_client", "tf221_client"])
def test_replay(cluster, name):
    c = cluster(ps=1, workers=1)
    channel = grpc.insecure_channel(c.target("ps").removeprefix("grpc://"), options=[("grpc.enable_http_proxy", 0)])
    session = partial = None
    steps = 0
    for call in conversation(name):
        method, request, expected = call["method"], call["req"], call["resp"]
        kind = method.rsplit("/", 1)[1]
        if kind == "ListDevices":
            request = join([(1, 2, session)])
        elif kind not in ("CreateSession", "Reset"):
            request = join([(n, t, session if n == 1 else partial if n == 6 and kind == "RunStep" else v) for n, t, v in fields(request)])
        answer = channel.unary_unary(method)(request, timeout=60)
        if kind == "CreateSession":
            session = get(answer, 1)
            assert len(session) == 16
        elif kind == "PartialRunSetup":
            partial = get(answer, 1)
            assert partial
        elif kind == "ExtendSession":
            assert answer == expected
        elif kind == "ListDevices":
            ours = {get(v, 1) for _, _, v in fields(answer)}
            assert ours == {get(v, 1) for _, _, v in fields(expected) if b"XLA" not in get(v, 1)}  # 1.15 has XLA devices beside its CPU
        elif kind == "RunStep":
            steps += 1
            assert get(answer, 3, 0) == get(expected, 3, 0), (get(answer, 4), get(expected, 4))  # status_code
            theirs, ours = tensors(expected), tensors(answer)
            assert sorted(ours) == sorted(theirs)
            for k in theirs:
                assert ours[k].dtype == theirs[k].dtype
                np.testing.assert_array_equal(ours[k], theirs[k]) if theirs[k].dtype == object else np.testing.assert_allclose(ours[k], theirs[k], rtol=1e-6)
            if get(expected, 2):  # RunMetadata: a traced step is traced by us, too
                assert get(answer, 2)
        else:
            assert answer == expected == b""
    assert steps >= 8
