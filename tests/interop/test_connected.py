"""Eager programs that connect to a cluster (no strategy, no coordinator): ops, variables and functions on our ps as on TensorFlow's, streamed and call by call."""
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from clusters import Cluster, free_ports

HERE = pathlib.Path(__file__).resolve().parent
STREAMED, UNARY = 0, 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Results of both runs with our ps and with TensorFlow's, and what our first ps has counted."""
    folder = tmp_path_factory.mktemp("connected")
    c, theirs = (Cluster(folder, 2, 0, 0, kind, "tf", ()) for kind in ("trn", "tf"))
    clients = []
    try:
        for x, address in zip((c, theirs), free_ports(2)):
            x.spec["client"] = [f"127.0.0.1:{address}"]
        c.start()
        for x, here in ((c, ""), (theirs, "1")):
            clients.append(subprocess.Popen([sys.executable, str(HERE / "connected.py"), str(folder / f"out{here}.json"), json.dumps(x.spec)], stderr=subprocess.PIPE, text=True,
                                            env={**os.environ, "PS_HERE": here, "TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": "True"}))
        errors = [p.communicate(timeout=300)[1] for p in clients]
        text = urllib.request.urlopen(f"http://{c.task('ps').address}/metrics", timeout=60).read().decode()
        assert [p.returncode for p in clients] == [0, 0], "".join(e[-4000:] for e in errors) + c.task("ps").log()[-2000:] + c.task("ps", 1).log()[-2000:]
        return *(json.loads((folder / f"out{here}.json").read_text()) for here in ("", "1")), text
    finally:
        for p in clients:
            p.kill()
            p.wait()
        c.stop()


def same(a, b, what):
    if isinstance(a, list):
        assert len(a) == len(b), what
        for x, y in zip(a, b):
            same(x, y, what)
    elif isinstance(a, float):
        np.testing.assert_allclose(a, b, rtol=1e-5, err_msg=what)
    else:
        assert a == b, what


@pytest.mark.parametrize("what", ["chains", "variables", "functions", "errors", "asynchronous", "packed"])
def test_same_as_tensorflow(runs, what):
    ours, theirs, _ = runs
    same(ours[STREAMED][what], theirs[STREAMED][what], f"{what}, streamed")
    same(ours[UNARY][what], theirs[UNARY][what], f"{what}, call by call")


def test_lacking_op(runs):
    """UNIMPLEMENTED, by name, when the part is registered with the ps."""
    ours, theirs, _ = runs
    assert theirs[STREAMED]["lacking"] == theirs[UNARY]["lacking"] == [6, 6]
    for run in ours:
        for name, code, text in run["lacking"]:
            assert (name, code) == ("UnimplementedError", 12) and "QuantizedRelu" in text and "EagerService/RunComponentFunction" not in text, text


def test_was_streamed(runs):
    calls = {m[1]: float(m[2]) for m in re.finditer(r'^\w*rpc_calls\w*{.*"(\w*Enqueue)".*} (\S+)$', runs[2], re.M)}
    assert calls["StreamingEnqueue"] > 200 and calls["Enqueue"] > 200
