"""Unchanged TensorFlow programs under `trainera launch`: ps are ours; workers are TensorFlow's own servers, or ours with --native-workers."""
import os
import subprocess
import sys

import pytest
from clusters import BIN

COMPARES = False

# The classic shape of such a program: flags, a server, a monitored session; nothing in it knows of us.
TRAINER = """
import argparse, os
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_v2_behavior()
a = argparse.ArgumentParser()
for f in ("ps_hosts", "worker_hosts", "job_name"):
    a.add_argument("--" + f)
a.add_argument("--task_index", type=int)
F = a.parse_args()
cluster = tf.train.ClusterSpec({"ps": F.ps_hosts.split(","), "worker": F.worker_hosts.split(",")})
server = tf.distribute.Server(cluster, job_name=F.job_name, task_index=F.task_index)
with v1.device(v1.train.replica_device_setter(worker_device="/job:worker/task:%d" % F.task_index, cluster=cluster)):
    step = v1.train.get_or_create_global_step()
    x = v1.get_variable("x", [4], initializer=v1.zeros_initializer())
    loss = tf.reduce_sum((x - 3.0) ** 2)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
with v1.train.MonitoredTrainingSession(master=server.target, is_chief=F.task_index == 0, hooks=[v1.train.StopAtStepHook(last_step=60)]) as s:
    value = s.run(loss)
    while not s.should_stop():
        value, _ = s.run([loss, train])
print("kind", type(server).__init__.__module__, isinstance(server, tf.distribute.Server), server.target)
print("final", round(float(value), 3), server.server_def.job_name, server.server_def.task_index)
"""

COUNTER = """
import json, os
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
task = config["task"]
server = v1.train.Server(tf.train.ClusterSpec(config["cluster"]), job_name=task["type"], task_index=task["index"])
with tf.device("/job:ps/task:0"):
    counter = v1.get_variable("counter", [], tf.int64, initializer=v1.zeros_initializer())
    add = counter.assign_add(1)
with v1.train.MonitoredTrainingSession(master=server.target, is_chief=task["type"] == "chief") as s:
    for _ in range(20):
        value = s.run(add)
print("counter", value)
"""


NAP = """# Only so that the test is quick: a worker that waits for the chief naps for a second, not for thirty.
import tensorflow as tf
_init = tf.compat.v1.train.SessionManager.__init__
tf.compat.v1.train.SessionManager.__init__ = lambda self, *a, **k: _init(self, *a, **{**k, "recovery_wait_secs": 1})
"""


def launch(tmp_path, program, *args, command=(), env=None):
    (tmp_path / "trainer.py").write_text(NAP + program)
    r = subprocess.run([BIN, "launch", *args, "--", sys.executable, "trainer.py", *command], cwd=tmp_path, text=True, capture_output=True, timeout=150,
                       env={**os.environ, **(env or {})})
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout


FLAGS = ["--ps_hosts={ps_hosts}", "--worker_hosts={worker_hosts}", "--job_name={job_name}", "--task_index={task_index}"]


@pytest.mark.parametrize("native", [pytest.param(False, marks=pytest.mark.slow), True])
def test_flags_program(tmp_path, native):
    out = launch(tmp_path, TRAINER, "--ps", "2", "--workers", "2", *["--native-workers"] * native, command=FLAGS)
    lines = sorted(l.split(" | ")[1] for l in out.splitlines() if "final" in l)
    assert [l.split()[2:] for l in lines] == [["worker", "0"], ["worker", "1"]], out
    assert all(float(l.split()[1]) < 0.05 for l in lines), out
    kinds = {l.split()[-3] for l in out.splitlines() if "kind" in l}
    assert (kinds == {"sitecustomize"}) == native, out


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True])
def test_a4_a_worker_that_opens_its_session_late(tmp_path, native):
    """…after the other one has ended: TensorFlow's CreateSession asks for every task of the cluster."""
    late = """import time
open("pid.%d" % F.task_index, "w").write(str(os.getpid()))
if F.task_index == 1:
    while not os.path.exists("pid.0"): time.sleep(0.1)
    while os.path.exists("/proc/" + open("pid.0").read()): time.sleep(0.1)
with v1.device("""
    out = launch(tmp_path, TRAINER.replace("with v1.device(", late, 1), "--ps", "2", "--workers", "2", *["--native-workers"] * native, command=FLAGS)
    assert sorted(l.split()[-1] for l in out.splitlines() if "final" in l) == ["0", "1"], out


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_tf_config_program_with_chief(tmp_path, native):
    out = launch(tmp_path, COUNTER, "--workers", "1", "--chief", *["--native-workers"] * native)
    assert max(int(l.split()[-1]) for l in out.splitlines() if "counter" in l) == 40, out


def test_e34_proxies_are_ignored(tmp_path):
    """Cluster traffic of TensorFlow's own client does not go through a proxy of the environment."""
    out = launch(tmp_path, COUNTER, "--workers", "0", "--chief", env={"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"})
    assert "counter 20" in out


def test_a_native_server_goes_with_its_worker(tmp_path):
    out = launch(tmp_path, """
import os, subprocess, sys
import tensorflow as tf
if "second" not in os.listdir("."):
    server = tf.distribute.Server.create_local_server()
    print("pid", server._process.pid)
    open("second", "w").write(str(server._process.pid))
    os._exit(3)  # without a word
import time
pid = open("second").read()
for _ in range(100):
    if not os.path.exists("/proc/" + pid): print("gone"); break
    time.sleep(0.05)
""", "--workers", "1", "--native-workers", "--max-restarts", "1")
    assert "gone" in out
