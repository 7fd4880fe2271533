"""Whole ParameterServerStrategy programs with TensorFlow as coordinator: on our ps and workers and on TensorFlow's, the same numbers; and what breaks under way."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
from clusters import free_ports

HERE = pathlib.Path(__file__).resolve().parent
MODES = "tutorial,optimizers,fit"


def made(cluster, kind, n_ps, workers=1, here=(), worker="tf"):
    """A cluster; the tasks `here` are part of the coordinator's process."""
    c = cluster(ps=n_ps, workers=workers, ps_kind=kind, worker_kind=worker, start=False)
    c.spec["chief"] = [f"127.0.0.1:{free_ports(1)[0]}"]  # the tasks share this dictionary
    c.tasks = [t for t in c.tasks if f"{t.job}/{t.index}" not in here]
    return c.start()


def program(c, out, mode, *args, here=()):
    return subprocess.Popen([sys.executable, str(HERE / "coordinated.py"), json.dumps(c.spec), str(out), mode, *map(str, args)], stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "TASKS_HERE": ",".join(here)})


def ended(c, p, out, seconds=300):
    try:
        err = p.communicate(timeout=seconds)[1]
    finally:
        p.kill()
        p.wait()
    assert p.returncode == 0, err[-4000:] + "".join(t.log()[-1500:] for t in c.tasks if t.kind == "trn")
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What the programs give on two ps of ours and of TensorFlow, in one process each: (ours, theirs)."""
    from clusters import Cluster
    got = []
    for kind, here in (("trn", ("worker/0",)), ("tf", ("worker/0", "ps/0", "ps/1"))):
        folder = tmp_path_factory.mktemp(kind)
        c = made(lambda **k: Cluster(folder, k["ps"], k["workers"], 0, k["ps_kind"], k["worker_kind"], ()), kind, 2, here=here)
        try:
            got.append(ended(c, program(c, folder / "out.json", MODES, folder, here=here), folder / "out.json"))
        finally:
            c.stop()
    return got


def same(a, b, **tolerance):
    for key in a:
        if isinstance(a[key], dict):
            same(a[key], b[key], **tolerance)
        elif key in ("weights", "early", "again"):
            for x, y in zip(a[key], b[key], strict=True):
                np.testing.assert_allclose(x, y, err_msg=key, **tolerance)
        elif isinstance(a[key], list) and a[key] and isinstance(a[key][0], str):
            assert a[key] == b[key], key
        else:
            np.testing.assert_allclose(a[key], b[key], err_msg=key, **tolerance)


def test_tutorial(both):
    ours, theirs = (x["tutorial"] for x in both)
    assert len(ours["loss"]) == 3 and ours["accuracy"][-1] > 0.8
    same(ours, theirs, rtol=1e-5, atol=1e-6)


def test_optimizers(both):
    ours, theirs = (x["optimizers"] for x in both)
    assert ours.keys() == theirs.keys()
    assert not [name for name, r in theirs.items() if isinstance(r[0], str)]
    for name, r in ours.items():
        assert not isinstance(r[0], str), (name, r[0])
        for x, y in zip(r, theirs[name]):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6, err_msg=name)


def test_keras_fit(both):
    ours, theirs = (x["fit"] for x in both)
    assert ours["epochs"] == [2, 3] and ours["names"] == [f"ckpt-{i}.index" for i in range(1, 5)] and ours["events"] >= 1
    same(ours, theirs, rtol=1e-4, atol=2e-5)
    same({"weights": ours["again"]}, {"weights": ours["weights"]}, rtol=0)


@pytest.mark.parametrize("ps", ["trn", "tf"])
def test_our_worker(both, cluster, tmp_path, ps):
    """The functions run on a worker of ours, which divides them between itself and the ps."""
    here = ("ps/0", "ps/1") if ps == "tf" else ()
    c = made(cluster, ps, 2, here=here, worker="trn")
    ours = ended(c, program(c, tmp_path / "out.json", "tutorial,fit", tmp_path, here=here), tmp_path / "out.json")
    same(ours["tutorial"], both[1]["tutorial"], rtol=1e-5, atol=1e-6)
    assert ours["fit"]["epochs"] == [2, 3]
    same(ours["fit"], both[1]["fit"], rtol=1e-4, atol=2e-5)


def marked(folder, p, at_least, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end and p.poll() is None:
        text = (folder / "mark").read_text() if (folder / "mark").exists() else ""
        if text and int(text) >= at_least:
            return
        time.sleep(0.1)
    pytest.fail(f"step {at_least} was not reached: {p.stderr.read()[-3000:] if p.poll() is not None else 'time is up'}")


@pytest.mark.parametrize("worker", ["tf", "trn"])
def test_lost_worker(cluster, tmp_path, worker):
    """Its closures run elsewhere, the training ends."""
    here = ("worker/0",) if worker == "tf" else ()
    c = made(cluster, "trn", 1, workers=2, here=here, worker=worker)
    p = program(c, tmp_path / "out.json", "count", 300, tmp_path, 0.05, here=here)
    marked(tmp_path, p, 20)
    c.task("worker", 1).kill()
    r = ended(c, p, tmp_path / "out.json")["count"]
    assert r["error"] is None and r["end"] >= 300 and r["w"] == r["end"] / 2


@pytest.mark.parametrize("worker", ["tf", "trn"])
def test_lost_ps(cluster, tmp_path, worker):
    """The coordinator gets UnavailableError; with a new ps the next coordinator goes on from the checkpoint. Workers stay."""
    c = made(cluster, "trn", 1, worker=worker)
    p = program(c, tmp_path / "out.json", "count", 100000, tmp_path, 0.05)
    marked(tmp_path, p, 20)
    c.task("ps").kill()
    r = ended(c, p, tmp_path / "out.json")["count"]
    assert (r["began"], r["error"]) == (0, "UnavailableError")
    c.task("ps").start()
    done = int((tmp_path / "mark").read_text())
    r = ended(c, program(c, tmp_path / "out.json", "count", done + 30, tmp_path, 0.05), tmp_path / "out.json")["count"]
    assert r["error"] is None and r["began"] >= done and r["end"] >= done + 30 and r["w"] == r["end"] / 2


def gauges(c):
    """What lives on the ps, and its memory in bytes."""
    t = c.task("ps")
    text = urllib.request.urlopen(f"http://{t.address}/metrics", timeout=20).read().decode()
    seen = {name: float(re.search(rf"^\w*{name}(?:{{.*}})? (\S+)$", text, re.M)[1]) for name in ("eager_contexts", "eager_handles", "steps_live")}
    rss = int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{t.proc.pid}/status").read_text())[1]) * 1024
    return seen, rss


@pytest.mark.parametrize("steps", [3000, pytest.param(100000, marks=pytest.mark.slow)])
def test_nothing_is_left_behind(cluster, tmp_path, steps):
    """Handles, contexts, steps and memory after a tenth of the steps are those at the end."""
    c = made(cluster, "trn", 1, here=("worker/0",))
    p = program(c, tmp_path / "out.json", "steady", steps, tmp_path, here=("worker/0",))
    marked(tmp_path, p, steps // 10)
    early, early_rss = gauges(c)
    marked(tmp_path, p, steps - 100, 3600)
    late, late_rss = gauges(c)
    r = ended(c, p, tmp_path / "out.json")["steady"]
    assert (r["end"], r["w"]) == (steps, steps)
    assert early["eager_contexts"] == late["eager_contexts"] <= 2
    assert late["eager_handles"] <= early["eager_handles"] + 20 and late["steps_live"] <= early["steps_live"] + 20, (early, late)
    assert late_rss < early_rss + (4 << 20), (early_rss, late_rss)
