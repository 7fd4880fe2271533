#!/usr/bin/env python3
"""The program from outside: flags, exit codes, what it writes and what it leaves behind. No TensorFlow needed.

    TRAINERA_BIN=build/trainera tests/cli/test_cli.py [-v] [name…]
"""
import atexit
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

BIN = os.environ.get("TRAINERA_BIN") or str(pathlib.Path(__file__).resolve().parents[2] / "build" / "trainera")
# Sanitized programs are slower to start.
PATIENCE = 30


HELD = []
atexit.register(lambda: [s.close() for s in HELD])


def free_port():
    """A port that the kernel gives to nobody else until we end: bound, but not listening, so that a task can have it."""
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    HELD.append(s)
    return s.getsockname()[1]


def clean_env(**more):
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    env.update(more)
    return env


def get(port, path, host="127.0.0.1"):
    with socket.create_connection((host, port), timeout=PATIENCE) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while chunk := s.recv(65536):
            data += chunk
    return data.decode()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid):
    return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def path(self, name, content=None):
        p = pathlib.Path(self.dir.name) / name
        if content is not None:
            p.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(p)

    def run_cli(self, *args, **env):
        return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=PATIENCE, env=clean_env(**env))

    def refuse(self, *args, code=3, exit_code=1, says="", **env):
        """It does not start, and says why in the form that programs read."""
        r = self.run_cli(*args, **env)
        last = r.stderr.strip().splitlines()[-1]
        m = re.fullmatch(r"\w+: (\d+) (.*)", last)
        self.assertTrue(m, r.stderr)
        self.assertEqual((int(m[1]), r.returncode), (code, exit_code), last)
        self.assertIn(says, m[2])

    def start(self, *args, **env):
        """Starts, waits for the ready file, returns the process and its content."""
        ready = self.path(f"ready{time.monotonic_ns()}")
        err = open(ready + ".err", "w+")
        self.addCleanup(err.close)
        p = subprocess.Popen([BIN, *args, "--ready-file", ready], stdout=subprocess.PIPE, stderr=err, text=True, env=clean_env(**env))
        self.addCleanup(self.finish, p)
        end = time.monotonic() + PATIENCE
        while not os.path.exists(ready):
            if p.poll() is not None or time.monotonic() > end:
                err.seek(0)
                self.fail(f"{args} does not serve: exit {p.poll()}\n{err.read()}")
            time.sleep(0.005)
        p.log = err
        return p, pathlib.Path(ready).read_text()

    @staticmethod
    def finish(p):
        if p.poll() is None:
            p.kill()
        p.wait()
        p.stdout.close()

    def end(self, p, sig=signal.SIGTERM, code=0):
        p.send_signal(sig)
        self.assertEqual(p.wait(PATIENCE), code)
        p.log.seek(0)
        return p.log.read()


class Help(Case):
    def test_version_and_help(self):
        self.assertRegex(self.run_cli("--version").stdout, r"^trainera \d+\.\d+\.\d+\n$")
        r = self.run_cli("--help")
        self.assertEqual(r.returncode, 0)
        for word in ("serve", "local", "--version"):
            self.assertIn(word, r.stdout)
        for args in (("help", "serve"), ("serve", "--help"), ("serve", "--ps_hosts=a:1", "-h")):
            r = self.run_cli(*args)
            self.assertEqual(r.returncode, 0)
            for flag in ("ps_hosts", "worker_hosts", "chief_hosts", "job_name", "task_index", "cluster_spec", "server_def", "port", "ready-file",
                         "bind", "log-level", "intra_op_parallelism_threads", "inter_op_parallelism_threads", "allow-path"):
                self.assertIn("--" + flag, r.stdout)
            self.assertNotIn("listen-fd", r.stdout)
        self.assertEqual(self.run_cli("help", "local").returncode, 0)

    def test_wrong_use(self):
        self.assertEqual(self.run_cli().returncode, 2)
        self.refuse("sevre", exit_code=2, says="did you mean 'serve'?")
        self.refuse("help", "nothing", exit_code=2, says="unknown command 'nothing'")
        self.refuse("serve", "--job_nmae=ps", exit_code=2, says="did you mean --job_name?")
        self.refuse("serve", "--port=x", exit_code=2, says="a number is expected")
        self.refuse("serve", "--log-level=loud", exit_code=2, says="debug, info, warn, error or off")
        self.refuse("local", "--ps", exit_code=2, says="needs a value")


class Serve(Case):
    def check_serves(self, target, host="127.0.0.1"):
        m = re.fullmatch(r"grpc://(.*):(\d+)\n", target)
        self.assertTrue(m, target)
        self.assertIn("200", get(int(m[2]), "/healthz", host).splitlines()[0])
        return m[1], int(m[2])

    def test_alone(self):
        p, target = self.start("serve", "--port", "0")
        host, _ = self.check_serves(target)
        self.assertEqual(host, "localhost")
        log = self.end(p)
        self.assertEqual(len([line for line in log.splitlines() if "I am /job:local/replica:0/task:0" in line]), 1)

    def test_flags(self):
        a, b = free_port(), free_port()
        p, target = self.start("serve", f"--ps_hosts=127.0.0.1:{a}", "--worker-hosts", f"127.0.0.1:{b},w1:2222", "--job_name=worker", "--task_index=0")
        self.assertEqual(self.check_serves(target), ("127.0.0.1", b))
        log = self.end(p, signal.SIGINT)
        self.assertIn(f"I am /job:worker/replica:0/task:0, serving at grpc://127.0.0.1:{b}", log)
        self.assertIn(f"ps[0 127.0.0.1:{a}] worker[0 127.0.0.1:{b}, 1 w1:2222]", log)

    def test_empty_list(self):
        """A job without tasks, as start scripts say it."""
        port = free_port()
        p, target = self.start("serve", f"--ps_hosts=127.0.0.1:{port}", "--worker_hosts=", "--chief_hosts=", "--job_name=ps")
        self.assertEqual(self.check_serves(target), ("127.0.0.1", port))
        self.assertIn(f"cluster: ps[0 127.0.0.1:{port}]", self.end(p))

    def test_other_jobs(self):
        port = free_port()
        p, target = self.start("serve", f"--job=evaluator=127.0.0.1:{port}", "--job", "x=h:1,h:2", "--chief_hosts=c:1", "--job_name=evaluator")
        self.assertEqual(self.check_serves(target), ("127.0.0.1", port))
        self.end(p)

    def test_cluster_spec(self):
        port = free_port()
        spec = json.dumps({"ps": {"3": f"localhost:{port}"}, "worker": ["w:1"]})
        for given in (spec, "@" + self.path("spec.json", spec)):
            p, target = self.start("serve", "--cluster_spec", given, "--job_name", "ps", "--task_index", "3")
            self.assertEqual(self.check_serves(target), ("localhost", port))
            self.end(p)

    def test_tf_config(self):
        port = free_port()
        conf = json.dumps({"cluster": {"ps": [f"localhost:{port}"], "worker": ["w:1"]}, "task": {"type": "ps", "index": "0"}})
        p, target = self.start("serve", TF_CONFIG=conf)
        self.assertEqual(self.check_serves(target), ("localhost", port))
        self.end(p)
        # Flags win over the environment.
        p, target = self.start("serve", "--job=only=localhost:0", "--port=0", TF_CONFIG=conf)
        self.assertNotEqual(self.check_serves(target)[1], port)
        self.assertIn("/job:only/", self.end(p))
        self.refuse("serve", TF_CONFIG="{", says="TF_CONFIG is not valid JSON")
        self.refuse("serve", "--task_index=4", TF_CONFIG=conf, says="task 4 was not defined")

    def test_server_def(self):
        port = free_port()
        text = f'''cluster {{ job {{ name: "local" tasks {{ key: 2 value: "localhost:{port}" }} }} }}
            job_name: "local" task_index: 2 protocol: "grpc" default_session_config {{ device_count {{ key: "CPU" value: 2 }} }}'''
        p, target = self.start("serve", "--server_def", self.path("def.txt", text))
        self.assertEqual(self.check_serves(target), ("localhost", port))
        self.end(p)

        def field(number, data):
            return bytes([number << 3 | 2, len(data)]) + data
        task = b"\x08\x02" + field(2, b"localhost:%d" % port)
        binary = field(1, field(1, field(1, b"local") + field(2, task))) + field(2, b"local") + b"\x18\x02"
        p, target = self.start("serve", "--server_def", self.path("def.pb", binary))
        self.assertEqual(self.check_serves(target), ("localhost", port))
        self.end(p)
        self.refuse("serve", "--server_def", self.path("bad", b"\x12\x99"), says="ServerDef")
        self.refuse("serve", "--server_def", self.path("none"), code=5, says="none")
        self.refuse("serve", "--server_def", self.path("def.txt"), "--job_name=x", says="leave out --job_name")
        self.refuse("serve", "--server_def", self.path("p", 'cluster { job { name: "local" tasks { key: 0 value: "localhost" } } } job_name: "local"'),
                    says="port")

    def test_port_and_bind(self):
        a, b = free_port(), free_port()
        p, target = self.start("serve", f"--ps_hosts=localhost:{a}", f"--port={b}", "--bind=127.0.0.1")
        self.assertEqual(self.check_serves(target)[1], b)
        self.end(p)

    def test_busy_port(self):
        p, target = self.start("serve", "--port=0")
        _, port = self.check_serves(target)
        self.refuse("serve", f"--job=local=localhost:{port}", code=2, says=str(port))  # UNKNOWN, as TensorFlow's server
        self.check_serves(target)
        self.end(p)

    def test_refusals(self):
        hosts = ("--ps_hosts=a:1", "--worker_hosts=b:1")
        self.refuse("serve", *hosts, says="--job_name is missing")
        self.refuse("serve", *hosts, "--job_name=chief", says='job "chief" was not defined in cluster, which has ps, worker')
        self.refuse("serve", *hosts, "--job_name=ps", "--task_index=1", says='task 1 was not defined in job "ps"')
        self.refuse("serve", "--ps_hosts=a:1,a:1", says="given twice")
        self.refuse("serve", "--ps_hosts=a", says="no port")
        self.refuse("serve", "--ps_hosts=", says="empty")
        self.refuse("serve", "--ps_hosts=a:1", "--cluster_spec={}", says="given twice")
        self.refuse("serve", "--cluster_spec={}", says="no tasks")
        self.refuse("serve", "--cluster_spec=@" + self.path("none"), code=5, says="none")
        self.refuse("serve", "--job=ps", says="NAME=HOST:PORT")
        self.refuse("serve", "--listen-fd=0", code=2, says="descriptor 0 is not a listening TCP socket")
        self.refuse("serve", "--port=0", "--allow-path=" + self.path("none"), code=5, says="no such folder")
        self.refuse("serve", "--port=0", "--ready-file=" + self.path("no/such/dir"), code=5, says="cannot write")


class Local(Case):
    def lines(self, ready):
        return [line.split(" ") for line in ready.splitlines()]

    def test_cluster(self):
        p, ready = self.start("local", "--ps", "2", "--workers=3", "--chief=1")
        tasks = self.lines(ready)
        self.assertEqual([t[:2] for t in tasks], [["chief", "0"], ["ps", "0"], ["ps", "1"], ["worker", "0"], ["worker", "1"], ["worker", "2"]])
        for t in tasks:
            self.assertIn("200", get(int(t[2].rsplit(":", 1)[1]), "/healthz").splitlines()[0])
        pids = children(p.pid)
        self.assertEqual(len(pids), 6)
        self.end(p, signal.SIGINT)
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        out = p.stdout.read()
        for t in tasks:
            self.assertIn(t[2], out)
        spec = json.loads(re.search(r"cluster spec: (.*)", out)[1])
        self.assertEqual([len(spec[j]) for j in ("chief", "ps", "worker")], [1, 2, 3])

    def test_counter_from_c(self):
        """What `make demo` shows: two C clients, one variable on the ps, an exact sum."""
        p, ready = self.start("local", "--ps=1", "--workers=2")
        targets = [t[2] for t in self.lines(ready) if t[0] == "worker"]
        r = subprocess.run([str(pathlib.Path(BIN).parent / "examples" / "counter"), *targets], capture_output=True, text=True, timeout=4 * PATIENCE)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("2 workers counted to 4000, as they should: yes", r.stdout)
        self.assertNotIn("Sanitizer", self.end(p))

    def test_nothing_outlives_it(self):
        p, _ = self.start("local", "--ps=1", "--workers=1")
        pids = children(p.pid)
        self.end(p, signal.SIGKILL, -signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while any(map(alive, pids)) and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_a_task_dies(self):
        p, _ = self.start("local", "--ps=1", "--workers=1")
        pids = children(p.pid)
        os.kill(pids[0], signal.SIGKILL)
        self.assertEqual(p.wait(PATIENCE), 1)
        p.log.seek(0)
        self.assertRegex(p.log.read().splitlines()[-1], r"^trainera: 10 /job:ps/task:0 \(pid \d+\) was ended by signal 9")
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_refusals(self):
        self.refuse("local", "--ps=0", "--workers=0", says="no tasks")
        self.refuse("local", "--ps=0", "--workers=1", "--allow-path=" + self.path("none"), code=10, says="/job:worker/task:0")
        self.refuse("local", "--ps=100000", exit_code=2, says="--ps=100000")


class Ops(unittest.TestCase):
    GRAPH = """node { name: "x" op: "Placeholder" attr { key: "dtype" value { type: DT_FLOAT } } }
node { name: "y" op: "Relu" input: "x" attr { key: "T" value { type: DT_%s } } }
node { name: "z" op: "%s" input: "y" attr { key: "T" value { type: DT_FLOAT } } }
library { function { signature { name: "f" } node_def { name: "in_f" op: "%s" } } }
"""

    def ops(self, *args):
        return subprocess.run([BIN, "ops", *args], capture_output=True, text=True, timeout=PATIENCE)

    def survey(self, *fill):
        with tempfile.NamedTemporaryFile("w", suffix=".pbtxt") as f:
            f.write(self.GRAPH % fill)
            f.flush()
            return self.ops(f.name)

    def test_list(self):
        names = self.ops().stdout.split()
        self.assertIn("MatMul", names)
        self.assertEqual(names, sorted(names))
        self.assertIn("MatMul(a:T, b:T -> product:T", self.ops("--signatures").stdout)

    def test_graph(self):
        r = self.survey("FLOAT", "Tanh", "Identity")
        self.assertEqual((r.returncode, r.stdout), (0, "Trainera has every op of these 4 nodes.\n"))
        r = self.survey("FLOAT", "Bogus", "AlsoBogus")
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, r"Bogus +1  z: not there")
        self.assertRegex(r.stdout, r"AlsoBogus +1  in_f in function f: not there")
        r = self.survey("STRING", "Tanh", "Identity")
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, r"Relu +1  y: .*string")

    def test_not_a_graph(self):
        r = self.ops(__file__)
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stderr, r"trainera: \d+ .*test_cli.py")
        self.assertEqual(self.ops("/nonexistent").returncode, 1)


if __name__ == "__main__":
    unittest.main()
