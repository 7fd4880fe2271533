"""Whole ParameterServerStrategy programs with TensorFlow as coordinator: on our ps and workers and on TensorFlow's, the same numbers; and what breaks under way."""
import pathlib
import re
import urllib.request

import numpy as np
import pytest
from conftest import SANITIZED
from coordinators import ended, made, marked, program, results, same

MODES = "tutorial,optimizers,fit"


@pytest.fixture(scope="module", params=[2, pytest.param(1, marks=pytest.mark.slow)])
def both(tmp_path_factory, request):
    """(ours, theirs)"""
    return results(tmp_path_factory, request.param, MODES)


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
def test_our_worker(both, cluster, tmp_path, ps, request):
    """The functions run on a worker of ours, which divides them between itself and the ps."""
    n_ps = request.node.callspec.params["both"]  # shards, and so what they begin with, go by it
    here = tuple(f"ps/{i}" for i in range(n_ps)) if ps == "tf" else ()
    c = made(cluster, ps, n_ps, here=here, worker="trn")
    ours = ended(c, program(c, tmp_path / "out.json", "tutorial,fit", tmp_path, here=here), tmp_path / "out.json")
    # Other kernels' rounding, and RMSprop at a rate of 0.01 makes full steps of gradients that are nearly nothing else.
    same(ours["tutorial"], both[1]["tutorial"], rtol=1e-4, atol=1e-5)
    assert ours["fit"]["epochs"] == [2, 3]
    same(ours["fit"], both[1]["fit"], rtol=1e-3, atol=1e-4)


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


@pytest.mark.parametrize("worker", ["trn", pytest.param("tf", marks=pytest.mark.slow)])
def test_restarted_worker(cluster, tmp_path, worker):
    """The only worker is lost in the middle of its closures: they wait for it, and run when it is there again. The ps keeps what it has."""
    c = made(cluster, "trn", 1, worker=worker)
    p = program(c, tmp_path / "out.json", "count", 150, tmp_path, 0.05)
    marked(tmp_path, p, 20)
    c.task("worker").kill()
    c.task("worker").start()
    r = ended(c, p, tmp_path / "out.json")["count"]
    assert r["error"] is None and r["end"] >= 150 and r["w"] == r["end"] / 2
    assert metric(c, 'rpc_calls_total{method="UpdateContext"}') >= 1, "the coordinator has told the ps"


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


def metric(c, name):
    text = urllib.request.urlopen(f"http://{c.task('ps').address}/metrics", timeout=60).read().decode()
    return float(re.search(rf"^\w*{re.escape(name)} (\S+)$", text, re.M)[1])


def gauges(c):
    """What lives on the ps, and its memory in bytes."""
    seen = {name: metric(c, name) for name in ("eager_contexts", "eager_handles", "eager_functions", "eager_plans", "eager_running", "steps_live", "variables")}
    return seen, int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{c.task('ps').proc.pid}/status").read_text())[1]) * 1024


@pytest.mark.parametrize("steps", [3000, pytest.param(100000, marks=pytest.mark.slow)])
def test_nothing_is_left_behind(cluster, tmp_path, steps):
    """Handles, contexts, steps and memory after a tenth of the steps are those at the end."""
    c = made(cluster, "trn", 1, here=("worker/0",))
    p = program(c, tmp_path / "out.json", "steady", steps, tmp_path, here=("worker/0",))
    marked(tmp_path, p, steps // 10, 3600)
    early, early_rss = gauges(c)
    marked(tmp_path, p, steps - 100, 3600)
    late, late_rss = gauges(c)
    print(f"{steps} steps: {early} and {early_rss >> 10} KiB after a tenth, {late} and {late_rss >> 10} KiB at the end")
    r = ended(c, p, tmp_path / "out.json")["steady"]
    assert (r["end"], r["w"]) == (steps, steps)
    assert early["eager_contexts"] == late["eager_contexts"] <= 2
    for name in late:
        assert late[name] <= early[name] + 20, (name, early, late)
    if not SANITIZED:  # a sanitizer keeps what was freed
        assert late_rss < early_rss + (4 << 20), (early_rss, late_rss)
