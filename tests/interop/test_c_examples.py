"""The examples in C, from one command each, alone and on clusters."""
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest
from clusters import BIN, free_ports

COMPARES = False
TOP = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = pathlib.Path(BIN).parent / "examples"
ENV = {k: v for k, v in os.environ.items() if k not in ("TRAINERA_OPS_SEEN", "TF_CONFIG")}


def run(name, *args, timeout=150, **env):
    p = subprocess.run([EXAMPLES / name, *args], capture_output=True, text=True, env=ENV | env, timeout=timeout, cwd=TOP)
    assert p.returncode == 0, p.stderr
    return p.stdout


def run_cluster(name, *args, ps=1, workers=2, chief_args=(), timeout=150):
    """Every task a process of the example; what worker 0 says. All of them must end by themselves."""
    ports = free_ports(ps + workers)
    hosts = [f"localhost:{p}" for p in ports]
    flags = [f"--ps_hosts={','.join(hosts[:ps])}", f"--worker_hosts={','.join(hosts[ps:])}", *args]
    tasks = [("ps", i) for i in range(ps)] + [("worker", i) for i in range(workers)]
    procs = []
    try:
        for job, i in tasks:
            more = chief_args if (job, i) == ("worker", 0) else ()
            procs.append(subprocess.Popen([EXAMPLES / name, *flags, f"--job_name={job}", f"--task_index={i}", *more], stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE, text=True, env=ENV, cwd=TOP))
        said = [p.communicate(timeout=timeout) for p in procs]
        for p, (_, err), task in zip(procs, said, tasks):
            assert p.returncode == 0, (task, err)
        return said[ps][0]
    finally:
        for p in procs:
            if p.poll() is None:
                p.kill()
                p.communicate()


def accuracy(text):
    return float(re.search(r"test accuracy: ([0-9.]+) %", text).group(1))


def test_digits_alone(tmp_path):
    assert accuracy(run("digits", f"--dir={tmp_path}")) >= 97
    # Once more in the same folder: there is nothing left to do.
    assert accuracy(run("digits", f"--dir={tmp_path}", timeout=60)) >= 97


def test_digits_on_a_cluster(tmp_path):
    said = run_cluster("digits", chief_args=[f"--dir={tmp_path}"])
    assert accuracy(said) >= 97
    assert "model.ckpt-" in said


@pytest.mark.parametrize("who", ["ps", pytest.param("worker", marks=pytest.mark.slow), pytest.param("chief", marks=pytest.mark.slow), "all"])
def test_digits_killed(tmp_path, who):
    """kill -9 in the middle, started again: the run goes on from its last checkpoint and ends as it would have."""
    ports = free_ports(3)
    flags = [f"--ps_hosts=localhost:{ports[0]}", f"--worker_hosts=localhost:{ports[1]},localhost:{ports[2]}", f"--dir={tmp_path}"]
    tasks = {"ps": ("ps", 0), "chief": ("worker", 0), "worker": ("worker", 1)}

    def start(name):
        job, i = tasks[name]
        return subprocess.Popen([EXAMPLES / "digits", *flags, f"--job_name={job}", f"--task_index={i}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=ENV, cwd=TOP)

    procs = {name: start(name) for name in tasks}
    dead = []
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("model.ckpt-[1-9]*.index")):
            assert time.monotonic() < deadline and procs["chief"].poll() is None
            time.sleep(0.05)
        for name in tasks if who == "all" else [who]:
            procs[name].send_signal(signal.SIGKILL)
            dead.append(procs[name])
        time.sleep(0.3)
        for name in tasks if who == "all" else [who]:
            procs[name] = start(name)
        said = {name: p.communicate(timeout=120) for name, p in procs.items()}
        assert {name: p.returncode for name, p in procs.items()} == dict.fromkeys(tasks, 0), said
        assert accuracy(said["chief"][0]) >= 97
        assert int(re.search(r"model.ckpt-(\d+)", said["chief"][0]).group(1)) >= 2000
    finally:
        for p in [*procs.values(), *dead]:
            if p.poll() is None:
                p.kill()
            p.communicate()


def test_word_embeddings(tmp_path):
    said = run("word_embeddings", f"--dir={tmp_path}", "--ask=turtle,nobodyatall")
    assert float(re.search(r"loss: ([0-9.]+)", said).group(1)) < 4.8  # 33·log 2 = 22.9 at the start
    assert "mock" in re.search(r"turtle: (.*)", said).group(1)
    assert "nobodyatall: not in the text" in said


def test_word_embeddings_on_a_cluster():
    said = run_cluster("word_embeddings", "--steps=3000", ps=2)
    assert float(re.search(r"loss: ([0-9.]+)", said).group(1)) < 6


def test_char_lstm(tmp_path):
    said = run("char_lstm", "--steps=250", "--write=100")
    assert float(re.search(r"loss: ([0-9.]+)", said).group(1)) < 2.6
    assert len(said) > 100 and "Alice was " in said


def test_char_lstm_on_a_cluster():
    assert "bits per character" in run_cluster("char_lstm", "--steps=60", "--write=20")


def test_linear_regression(tmp_path):
    assert re.match(r"y = (3.00|2.99|3.01) x \+ (2.00|1.99|2.01)", run("linear_regression"))
    ports = free_ports(3)
    cluster = {"ps": [f"localhost:{ports[0]}"], "worker": [f"localhost:{p}" for p in ports[1:]]}
    procs = []
    try:
        for job, index in (("ps", 0), ("worker", 1), ("worker", 0)):
            config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
            (tmp_path / f"{job}{index}.json").write_text(config)
            env = ENV | ({"TF_CONFIG": config} if index else {})  # one of them from the environment
            flags = [] if index else [f"--tf_config={tmp_path / f'{job}{index}.json'}"]
            procs.append(subprocess.Popen([EXAMPLES / "linear_regression", *flags], stdout=subprocess.PIPE, text=True, env=env))
        said = [p.communicate(timeout=60)[0] for p in procs]
        assert [p.returncode for p in procs] == [0, 0, 0]
        assert re.match(r"y = (3.0\d|2.9\d) x \+ (2.0\d|1.9\d)", said[2])
    finally:
        for p in procs:
            if p.poll() is None:
                p.kill()
                p.communicate()
