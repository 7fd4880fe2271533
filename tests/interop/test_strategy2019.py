"""The first ParameterServerStrategy, configured by TF_CONFIG alone: Estimators of the real TensorFlow train on our ps as on TensorFlow's, whoever comes first, and everyone ends."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent


def worker(c, tmp, job, index, steps, hold=""):
    """`hold`: "STEP FILE" makes it wait before that step until the file is there. Its own file JOB.mark has the step it has reached."""
    tf_config = json.dumps({"cluster": c.spec, "task": {"type": job, "index": index}})
    return subprocess.Popen([sys.executable, str(HERE / "strategy2019.py"), str(tmp / f"{job}.json"), str(steps), str(tmp / "model")], stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "TF_CONFIG": tf_config, "MARK": str(tmp / f"{job}.mark"), "HOLD": hold})


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


def test_one_worker(cluster, tmp_path):
    """The same numbers on both kinds of ps."""
    got, running = {}, {}
    for kind in ("trn", "tf"):
        folder = tmp_path / kind
        folder.mkdir()
        c = made(cluster, ps=1, workers=0, chief=1, ps_kind=kind)
        c.start()
        running[kind] = worker(c, folder, "chief", 0, 50)
    try:
        for kind, p in running.items():
            ended(p)
            got[kind] = json.loads((tmp_path / kind / "chief.json").read_text())
    finally:
        for p in running.values():
            p.kill()
            p.wait()
    assert got["trn"]["step"] == got["tf"]["step"] == 50
    assert abs(got["tf"]["w"] - 3) < 0.2
    for key in ("w", "b"):
        assert got["trn"][key] == pytest.approx(got["tf"][key], abs=1e-6)


def until(condition, p, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert p.poll() is None and time.monotonic() < end, p.stderr.read()[-3000:] if p.poll() is not None else "time is up"
        time.sleep(0.05)


def step_of(mark):
    text = mark.read_text() if mark.exists() else ""
    return int(text) if text else -1


def test_ps_last_and_one_worker_earlier(cluster, tmp_path):
    """The first worker calls for the ps before it is there, trains a hundred steps alone, goes on with the second, and all end."""
    c = made(cluster, ps=1, workers=1, chief=1)
    host, port = c.spec["ps"][0].rsplit(":", 1)
    with socket.socket() as ps:  # nobody answers there yet, but we see who calls
        ps.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ps.bind((host, int(port)))
        ps.listen()
        ps.settimeout(120)
        chief = worker(c, tmp_path, "chief", 0, 2000, f"100 {tmp_path / 'worker.mark'}")
        try:
            ps.accept()[0].close()
        except OSError:
            chief.kill()
            raise
    late = None
    try:
        c.start()
        until(lambda: step_of(tmp_path / "chief.mark") >= 99, chief)
        assert not (tmp_path / "worker.mark").exists()
        late = worker(c, tmp_path, "worker", 0, 2000)
        ended(late)
    finally:
        if late and late.poll() is None:
            late.kill()
        ended(chief)
    r = json.loads((tmp_path / "chief.json").read_text())
    assert r["step"] >= 2000 and r["w"] == pytest.approx(3, abs=1e-3) and r["b"] == pytest.approx(1, abs=1e-3)
    assert (tmp_path / "worker.json").exists() and step_of(tmp_path / "worker.mark") >= 100
