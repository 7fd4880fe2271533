"""tf.estimator's canned models under train_and_evaluate: chief, ps, worker and evaluator as processes of their own (estimators.py).

    tf      all as tf.estimator starts them
    mixed   the ps is ours, chief and worker start TensorFlow's servers
    trn     all three tasks are ours; the processes of chief and worker are only their clients

Two trainers run asynchronously, so what they end with is compared, not how they came there.
"""
import json
import os
import pathlib
import subprocess
import sys

import pytest
from clusters import Cluster

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE = 240


def train(tmp, kind, model):
    """What the evaluator saw last."""
    c = Cluster(tmp, 1, 1, 1, "tf" if kind == "tf" else "trn", "trn" if kind == "trn" else "tf", ())
    procs, logs = {}, {}
    try:
        for t in c.tasks:
            if t.kind == "trn":
                t.start()
        for job in ("ps", "chief", "worker", "evaluator"):
            if job == "ps" and kind != "tf":
                continue
            config = {"cluster": c.spec, "task": {"type": job, "index": 0}}
            if kind == "trn":
                config["environment"] = "google"  # servers are there already
            logs[job] = tmp / f"{job}.out"
            cmd = [sys.executable, str(HERE / "estimators.py"), "--model", model, "--model_dir", str(tmp / "model")]
            with open(logs[job], "wb") as f:
                procs[job] = subprocess.Popen(cmd, env={**os.environ, "TF_CONFIG": json.dumps(config)}, stdout=f, stderr=subprocess.STDOUT)
        for job in ("chief", "worker", "evaluator"):
            code = procs[job].wait(PATIENCE)
            assert code == 0, f"{job} ended with {code}:\n{logs[job].read_text(errors='replace')[-5000:]}"
    finally:
        for p in procs.values():
            if p.poll() is None:
                p.kill()
            p.wait()
        for t in c.tasks:
            if t.proc:
                assert t.stop() == 0, t.log()[-3000:]
    said = [line for line in logs["evaluator"].read_text(errors="replace").splitlines() if line.startswith("evaluated ")]
    return json.loads(said[-1].split(" ", 1)[1])


def alone(tmp, model):
    """Without a cluster."""
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    out = subprocess.run([sys.executable, str(HERE / "estimators.py"), "--model", model, "--model_dir", str(tmp / "alone")], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert out.returncode == 0, out.stderr[-3000:]
    return json.loads(out.stdout.split("evaluated ", 1)[1])


def near(ours, theirs):
    assert theirs["accuracy"] > 0.85 and theirs["auc"] > 0.9, theirs
    assert ours.keys() == theirs.keys()
    assert ours["global_step"] >= 300
    for k in ("accuracy", "auc", "auc_precision_recall", "precision", "recall", "prediction/mean"):
        assert abs(ours[k] - theirs[k]) < 0.06, f"{k}: {ours} and {theirs}"
    assert abs(ours["average_loss"] - theirs["average_loss"]) < 0.1, f"{ours} and {theirs}"
    assert ours["label/mean"] == pytest.approx(theirs["label/mean"], abs=1e-6)


def test_wide_deep(tmp_path):
    near(train(tmp_path, "trn", "wide-deep"), alone(tmp_path, "wide-deep"))


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """What an all-TensorFlow cluster ends with, by model."""
    known = {}

    def get(model):
        if model not in known:
            known[model] = train(tmp_path_factory.mktemp(model), "tf", model)
        return known[model]
    return get


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["trn", "mixed"])
@pytest.mark.parametrize("model", ["dnn", "linear", "wide-deep"])
def test_train_and_evaluate(tmp_path, reference, model, kind):
    near(train(tmp_path, kind, model), reference(model))
