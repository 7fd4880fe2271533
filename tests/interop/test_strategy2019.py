"""The first ParameterServerStrategy, configured by TF_CONFIG alone: Estimators of the real TensorFlow train on our ps, whoever comes first, and everyone ends."""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent


def worker(c, tmp, job, index, steps):
    tf_config = json.dumps({"cluster": c.spec, "task": {"type": job, "index": index}})
    return subprocess.Popen([sys.executable, str(HERE / "strategy2019.py"), str(tmp / f"{job}.json"), str(steps), str(tmp / "model")], stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "TF_CONFIG": tf_config})


def ended(p):
    try:
        err = p.communicate(timeout=200)[1]
    finally:
        p.kill()
        p.wait()
    assert p.returncode == 0, err[-4000:]


def made(cluster, **jobs):
    c = cluster(worker_kind="tf", start=False, **jobs)
    c.tasks = [t for t in c.tasks if t.job == "ps"]  # the others are these programs
    return c


@pytest.mark.parametrize("kind", ["trn", "tf"])
def test_one_worker(cluster, tmp_path, kind):
    c = made(cluster, ps=1, workers=0, chief=1, ps_kind=kind)
    c.start()
    ended(worker(c, tmp_path, "chief", 0, 50))
    r = json.loads((tmp_path / "chief.json").read_text())
    assert r["step"] == 50
    assert r["w"] == pytest.approx(2.9439454, abs=1e-5) and r["b"] == pytest.approx(0.9962688, abs=1e-5)  # both kinds of ps


def test_ps_last_and_one_worker_earlier(cluster, tmp_path):
    """The first worker waits for the ps, trains without waiting for the second, and all end."""
    c = made(cluster, ps=1, workers=1, chief=1)
    chief = worker(c, tmp_path, "chief", 0, 2000)
    try:
        time.sleep(3)
        assert chief.poll() is None
        c.start()
        late = worker(c, tmp_path, "worker", 0, 2000)
        ended(late)
    finally:
        ended(chief)
    r = json.loads((tmp_path / "chief.json").read_text())
    assert r["step"] >= 2000 and r["w"] == pytest.approx(3, abs=1e-3) and r["b"] == pytest.approx(1, abs=1e-3)
    assert (tmp_path / "worker.json").exists()
