"""Tasks of either kind, as processes: what the tests with the real TensorFlow run on."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
BIN = os.environ.get("TRAINERA_BIN") or str(HERE.parents[1] / "build" / "trainera")
PATIENCE = 60


HELD = []


def free_ports(n):
    """Ports that the kernel gives to nobody else until we end, not as the near end of a connection either: bound, but not listening, so that a task can have them."""
    for _ in range(n):
        s = socket.socket()
        s.bind(("127.0.0.1", 0))
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        HELD.append(s)
    return [s.getsockname()[1] for s in HELD[len(HELD) - n:]]


class Task:
    """One server process. kind: "trn" (ours) or "tf"."""

    def __init__(self, spec, job, index, kind, log, args=()):
        self.spec, self.job, self.index, self.kind, self.args = spec, job, index, kind, list(args)
        self.address = spec[job][index]
        self.target = "grpc://" + self.address
        self.log_path = log
        self.proc = None

    def start(self, wait=True):
        log = open(self.log_path, "ab")
        if self.kind == "trn":
            cmd = [BIN, "serve", "--cluster_spec=" + json.dumps(self.spec), "--job_name=" + self.job, f"--task_index={self.index}", *self.args]
        else:
            cmd = [sys.executable, str(HERE / "tfserver.py"), json.dumps(self.spec), self.job, str(self.index)]
        env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
        self.proc = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env)
        log.close()
        if wait:
            self.wait_up()
        return self

    def wait_up(self):
        host, port = self.address.rsplit(":", 1)
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self.proc.poll() is not None:
                raise RuntimeError(f"/job:{self.job}/task:{self.index} did not start (exit {self.proc.returncode}):\n{self.log()}")
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError(f"/job:{self.job}/task:{self.index} does not listen:\n{self.log()}")

    def log(self):
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def kill(self):
        """As a lost machine: no goodbye."""
        self.proc.kill()
        self.proc.wait()

    def stop(self):
        """In order; returns the exit code. A sanitizer's finding is a failure of the test."""
        if self.proc.poll() is None:
            if self.kind == "tf":
                self.proc.kill()
            else:
                self.proc.send_signal(signal.SIGTERM)
        try:
            code = self.proc.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"/job:{self.job}/task:{self.index} did not end:\n{self.log()[-4000:]}") from None
        finally:
            self.proc.stdin.close()
        return code


class Cluster:
    def __init__(self, tmp, ps, workers, chief, ps_kind, worker_kind, args):
        ports = iter(free_ports(ps + workers + chief))
        counts = {"chief": chief, "ps": ps, "worker": workers}
        self.spec = {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in counts.items() if n}
        kinds = {"ps": ps_kind, "worker": worker_kind, "chief": worker_kind}
        self.tasks = [Task(self.spec, job, i, kinds[job], str(tmp / f"{job}{i}.log"), args) for job, a in self.spec.items() for i in range(len(a))]

    def task(self, job, index=0):
        return next(t for t in self.tasks if (t.job, t.index) == (job, index))

    def target(self, job="worker", index=0):
        return self.task(job, index).target

    def start(self):
        for t in self.tasks:
            t.start(wait=False)
        for t in self.tasks:
            t.wait_up()
        return self

    def stop(self):
        bad = []
        for t in self.tasks:
            if t.proc is None:
                continue
            killed = t.proc.poll() == -signal.SIGKILL
            code = t.stop()
            if t.kind == "trn" and code != 0 and not killed:
                bad.append(f"/job:{t.job}/task:{t.index} ended with {code}:\n{t.log()[-6000:]}")
        assert not bad, "\n".join(bad)
