#!/usr/bin/env python3
"""trainera check and trainera init from outside. No TensorFlow needed.

    TRAINERA_BIN=build/trainera tests/cli/test_check.py [-v] [name…]
"""
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_launch import BIN, PATIENCE, until  # noqa: E402
from test_rendezvous import HELD, free_port, get  # noqa: E402


def trainera(*args, **env):
    r = subprocess.run([BIN, *args], capture_output=True, text=True, timeout=PATIENCE * 2, env={**{k: v for k, v in os.environ.items() if k != "TF_CONFIG"}, **env})
    return r.returncode, r.stdout, r.stderr


def first_port(*offsets):
    """A port that, with those that far behind it, nobody else can get until we end."""
    while True:
        base, held = random.randrange(20000, 30000), []  # below what the kernel gives away
        try:
            for i in offsets:
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", base + i))  # fails when anybody has it
                held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a task may have it beside us
            HELD.extend(held)
            return base
        except OSError:
            [s.close() for s in held]


class Check(unittest.TestCase):
    def problems(self, *args, code=1, **env):
        rc, out, err = trainera("check", *args, **env)
        self.assertEqual(rc, code, out + err)
        return [l[9:] for l in out.splitlines() if l.startswith("problem: ")]

    def one(self, pattern, *args, **env):
        found = self.problems(*args, **env)
        self.assertTrue(any(re.search(pattern, p) for p in found), found)

    def serve(self, *args):
        p = subprocess.Popen([BIN, "serve", "--log-level=off", *args])
        self.addCleanup(p.wait)
        self.addCleanup(p.kill)
        return p

    def test_e37_tf_config_traps(self):
        config = lambda cluster, **task: json.dumps({"cluster": cluster, "task": task} if task else {"cluster": cluster})
        cases = [
            ("the evaluator is in the cluster", config({"chief": ["a:1"], "evaluator": ["b:1"]}, type="chief", index=0)),
            ("there is no chief: Estimators", config({"ps": ["a:1"], "worker": ["b:1"]}, type="worker", index=0)),
            ("job ps has no tasks", config({"ps": [], "chief": ["b:1"]}, type="chief", index=0)),
            ("index out of range, the last one is worker/0", config({"chief": ["a:1"], "worker": ["b:1"]}, type="worker", index=3)),
            ("of job boss, which the cluster does not have", config({"chief": ["a:1"]}, type="boss", index=0)),
            ('has no "task"', config({"chief": ["a:1"]})),
            ("is no JSON: .* line 1", "{"),
            ("is a string; a list of addresses is expected", config({"chief": "a:1"}, type="chief", index=0)),
            ("a:1 is given twice: for chief/0 and for worker/0", config({"chief": ["a:1"], "worker": ["a:1"]}, type="chief", index=0)),
            ("has no port", config({"chief": ["a"]}, type="chief", index=0)),
            (r"write an IPv6 address as \[::1\]:2222", config({"chief": ["::1:2222"]}, type="chief", index=0)),
        ]
        for pattern, text in cases:
            with self.subTest(pattern):
                self.one(pattern, "--offline", TF_CONFIG=text)
        self.assertEqual(self.problems("--offline", code=0, TF_CONFIG=config({"chief": ["a:1"], "ps": ["[::1]:2"]}, type="chief", index=0)), [])

    def test_everything_at_once(self):
        self.assertEqual(len(self.problems("--offline", "--ps_hosts=a,b:0,c:1,c:1", "--job_name=worker")), 4)

    def test_nothing_to_check(self):
        self.assertEqual(trainera("check")[0], 2)

    def test_who_answers(self):
        port, other, free = free_port(), free_port(), free_port()
        self.serve(f"--ps_hosts=localhost:{port}", f"--worker_hosts=localhost:{other}", "--job_name=ps")
        self.assertTrue(until(lambda: get(f"localhost:{port}", "/healthz")))
        rc, out, _ = trainera("check", f"--ps_hosts=localhost:{port}", f"--worker_hosts=localhost:{free}")
        self.assertEqual(rc, 0, out)
        self.assertRegex(out, rf"ps +0 +localhost:{port} +up, trainera \d")
        self.assertRegex(out, rf"worker +0 +localhost:{free} +not started")
        self.one(f"worker/0: nothing listens at localhost:{free}", "--up", f"--ps_hosts=localhost:{port}", f"--worker_hosts=localhost:{free}")
        self.one("worker/0: at .* answers /job:ps/replica:0/task:0 instead", f"--worker_hosts=localhost:{port}")
        self.one(rf"port {port} is taken on this machine by pid \d+ \(.*trainera serve", f"--worker_hosts=localhost:{port}", "--job_name=worker")
        server = http.server.HTTPServer(("127.0.0.1", 0), type("Quiet", (http.server.BaseHTTPRequestHandler,), {"log_message": lambda *a: None}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.one("answers a plain web server", f"--ps_hosts=127.0.0.1:{server.server_port}")
        self.one("cannot resolve host", "--ps_hosts=no-such-host.invalid:1")
        found = json.loads(trainera("check", "--json", f"--ps_hosts=localhost:{port}")[1])
        self.assertEqual(found["problems"], [])
        self.assertLess(abs(found["tasks"][0]["clock_skew_ms"]), 2000)

    def test_e38_mixed_versions_and_clocks(self):
        """A task that says that it is of another version, a day ahead: everything is passed through to a real one but /job."""
        port = free_port()
        self.serve(f"--ps_hosts=127.0.0.1:{port},127.0.0.1:1", "--job_name=ps")
        self.assertTrue(until(lambda: get(f"127.0.0.1:{port}", "/healthz")))
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def copy(a, b, change):
            try:
                while data := a.recv(65536):
                    b.sendall(change(data))
            except OSError:
                pass
            for s in (a, b):
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

        def accept():
            while True:
                try:
                    a = listener.accept()[0]
                except OSError:
                    return
                b = socket.create_connection(("127.0.0.1", port))
                change = lambda d: re.sub(rb'"time_us": \d{6}', b'"time_us": 999999', re.sub(rb'"version": "0', b'"version": "7', d))
                threading.Thread(target=copy, args=(a, b, lambda d: d), daemon=True).start()
                threading.Thread(target=copy, args=(b, a, change), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        fake = listener.getsockname()[1]
        found = self.problems(f"--job=ps=127.0.0.1:{port},127.0.0.1:{fake}")
        self.assertTrue(any("different versions" in p for p in found), found)
        self.assertTrue(any(re.search(r"its clock is [\d.]+ s (ahead of|behind) ours", p) for p in found), found)

    def test_slurm_environment(self):
        rc, out, err = trainera("check", "--offline", "--slurm", "--ps", "1", SLURM_STEP_NODELIST="n[1-2]", SLURM_STEP_TASKS_PER_NODE="2(x2)", SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="2")
        self.assertEqual(rc, 0, err)
        self.assertRegex(out, r"worker +1 +n2:8888 +\(this task\)")

    def test_e35_ipv6_everywhere(self):
        try:
            port = free_port("::1")
        except OSError:
            self.skipTest("no IPv6 here")
        self.serve(f"--ps_hosts=[::1]:{port}", "--job_name=ps")
        until(lambda: get(f"[::1]:{port}", "/healthz"))
        rc, out, _ = trainera("check", "--up", f"--ps_hosts=[::1]:{port}")
        self.assertEqual(rc, 0, out)


class Init(unittest.TestCase):
    def write(self, *args):
        rc, out, err = trainera("init", *args)
        self.assertEqual(rc, 0, err)
        return out

    def test_slurm(self):
        text = self.write("slurm", "--nodes", "3", "--tasks-per-node", "2", "--ps", "2", "--", "python", "t.py", "--name=it's me")
        self.assertIn("#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=2\n", text)
        self.assertIn("trainera launch --ps 2", text)
        self.assertEqual(subprocess.run(["bash", "-n"], input=text, text=True).returncode, 0)
        words = subprocess.run(["bash", "-c", text.split("-- \\\n")[1].strip().replace("python t.py", "printf %s")], capture_output=True, text=True).stdout
        self.assertEqual(words, "--name=it's me")

    def test_condor(self):
        text = self.write("condor", "--workers", "3", "--dir", "/shared/meet", "--", "python", "t.py", "it's me")
        self.assertIn("--rendezvous /shared/meet --job-id condor-$(ClusterId) --tasks 4 --index $(Process) --ps 1", text)
        self.assertIn("python t.py 'it''s me'\"\n", text)
        self.assertIn("queue 4\n", text)
        text = self.write("condor", "--dir", "/a b/$c", "--", "sh", "-c", 'echo "$(date)"', "{a,b}", "{task_index}")
        self.assertIn("--rendezvous '/a b/$(DOLLAR)c' ", text)
        self.assertIn("""sh -c 'echo ""$(DOLLAR)(date)""' '{a,b}' {task_index}\"\n""", text)

    def test_k8s(self):
        text = self.write("k8s", "--image", "r/i", "--ps", "2", "--", "python", "t.py")
        self.assertEqual(text.count("kind: StatefulSet"), 2)
        self.assertIn("readinessProbe: {httpGet: {path: /healthz, port: 2222}", text)
        spec = json.loads(re.search(r"spec.json: '(.*)'", text)[1])
        self.assertEqual(spec, {"ps": ["trainera-ps-0.trainera:2222", "trainera-ps-1.trainera:2222"], "worker": ["trainera-worker-0.trainera:2222", "trainera-worker-1.trainera:2222"]})

    def test_ssh_runs(self):
        """The script with an ssh that stays here: a whole job on one "host"."""
        with tempfile.TemporaryDirectory() as d:
            ssh = pathlib.Path(d) / "ssh"
            ssh.write_text('#!/bin/bash\nwhile [[ $1 == -* ]]; do [[ $1 == -o ]] && shift; shift; done; shift; exec bash -c "$*"\n')
            ssh.chmod(0o755)
            (pathlib.Path(d) / "trainera").symlink_to(BIN)
            base = first_port(0, 100, 101)
            text = self.write("ssh", "--hosts", "localhost", "--ps", "1", "--workers", "2", "--port", str(base), "--", "sh", "-c", "echo I am {job_name}/{task_index} of {worker_hosts}; sleep 1")
            r = subprocess.run(["bash"], input=text, cwd=d, capture_output=True, text=True, timeout=PATIENCE * 2, env={**os.environ, "PATH": f"{d}:{os.environ['PATH']}"})
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            self.assertIn(f"I am worker/1 of localhost:{base + 100},localhost:{base + 101}", r.stdout)

    def test_wrong_words(self):
        rc, _, err = trainera("init", "slum")
        self.assertEqual(rc, 1)
        self.assertIn("did you mean 'slurm'?", err)
        self.assertEqual(trainera("init")[0], 2)
        for words in (("condor", "--name", "a b"), ("slurm", "--name", "../x"), ("ssh", "--hosts", "a;reboot"), ("condor", "--", "sh", "-c", "a\nb")):
            rc, out, err = trainera("init", *words)
            self.assertEqual((rc, out), (1, ""), err)


if __name__ == "__main__":
    unittest.main()
