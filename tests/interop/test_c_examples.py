"""The examples in C, from one command each, alone and on clusters."""
import os
import pathlib
import re
import subprocess

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
