#!/usr/bin/env python3
"""Tasks that do not know each other meet: in a shared folder, over TCP, at known addresses. No TensorFlow needed.

    TRAINERA_BIN=build/trainera tests/cli/test_rendezvous.py [-v] [name…]
"""
import atexit
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_launch import BIN, PATIENCE, STOOD_IN, Case, cmdline, listens, processes, until  # noqa: E402

HELD = []
atexit.register(lambda: [s.close() for s in HELD])
EXAMPLES = pathlib.Path(os.environ.get("TRAINERA_EXAMPLES") or pathlib.Path(BIN).parent / "examples")


def free_port(host="127.0.0.1"):
    """A port that the kernel gives to nobody else until we end: bound, but not listening, so that a task can have it (as launch_cluster.c does it)."""
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, 0))
    HELD.append(s)
    return s.getsockname()[1]


def get(address, path):
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://{address}{path}", timeout=5) as r:
            return r.read()
    except OSError:
        return b""


class Meet(Case):
    def setUp(self):
        super().setUp()
        self.procs = []
        self.addCleanup(lambda: [p.kill() for p in self.procs if p.poll() is None])

    def task(self, index, *args, tasks=3, where=None, program=("sh", "-c", "echo spec '{cluster_spec}' {job_name} {task_index}"), name=None, host="127.0.0.1"):
        log = self.dir / (name or f"log.{index}")
        with open(log, "ab") as f:
            p = subprocess.Popen([BIN, "launch", "--rendezvous", str(where or self.dir / "meet"), "--tasks", str(tasks), "--index", str(index), *(["--host", host] if host else []),
                                  "--log-dir=", *args, "--", *program], cwd=self.dir, env=self.env, stdout=f, stderr=f)
        p.log = log
        self.procs.append(p)
        return p

    def wait(self, p, code=0):
        try:
            p.wait(PATIENCE * 3)
        except subprocess.TimeoutExpired:
            self.fail(p.log.read_text())
        self.assertEqual(p.returncode, code, p.log.read_text())
        return p.log.read_text()

    def spec(self, text):
        return json.loads(re.search(r"spec (\{.*\}) \w+ \d+$", text, re.M)[1])


class Folder(Meet):
    def test_e31_all_learn_all_addresses(self):
        ps = [self.task(i, "--ps", "1", "--job-id", "a") for i in (2, 1, 0)]
        logs = [self.wait(p) for p in ps]
        self.assertEqual(self.spec(logs[0]), self.spec(logs[1]))
        self.assertEqual({j: len(a) for j, a in self.spec(logs[0]).items()}, {"ps": 1, "worker": 2})
        self.assertEqual(os.listdir(self.dir / "meet"), [])

    def test_who_is_missing_is_named(self):
        p = self.task(0, "--wait-timeout", "5")
        log = self.wait(p, 3)
        self.assertRegex(log, r"ps/0 \(task 0\) waits since \d+ s in .*meet, job 'job', for 2 of 3 tasks: task 1 \(never seen\), task 2 \(never seen\); giving up in")
        self.assertEqual(os.listdir(self.dir / "meet"), [])

    def test_interrupted_while_waiting(self):
        p = self.task(0)
        until(lambda: (self.dir / "meet").is_dir() and os.listdir(self.dir / "meet"))
        p.terminate()
        self.wait(p, 143)
        self.assertEqual(os.listdir(self.dir / "meet"), [])

    def test_the_same_task_twice(self):
        first = self.task(1, program=("sh", "-c", "sleep 1"))
        until(lambda: (self.dir / "meet/job.task-1.json").exists())
        log = self.wait(self.task(1, name="twice"), 1)
        self.assertIn("task 1 of job 'job' runs already: pid", log)
        others = [self.task(i, program=("sh", "-c", "sleep 1")) for i in (0, 2)]
        for p in [first, *others]:
            self.wait(p)

    def test_files_of_an_earlier_run(self):
        """Of a killed one on this machine, and of a machine that is gone: neither is believed, nor waited for for long."""
        meet = self.dir / "meet"
        meet.mkdir()
        old = time.time() - 3600
        cards = [{"index": i, "tasks": 3, "role": "x", "address": f"10.9.9.9:{i + 1}", "host": "gone", "nonce": f"old{i}", "ns": "x", "pid": 1} for i in range(3)]
        for i in (1, 2):
            (meet / f"job.task-{i}.json").write_text(json.dumps(cards[i]))
            os.utime(meet / f"job.task-{i}.json", (old, old))
        (meet / "job.cluster.json").write_text(json.dumps({"job": "job", "members": cards}))
        (meet / ".job.task-1.0123456789abcdef.tmp").write_text(json.dumps(cards[1]))  # killed while it wrote
        os.utime(meet / ".job.task-1.0123456789abcdef.tmp", (old, old))
        dead = self.task(0)
        until(lambda: (meet / "job.task-0.json").exists())
        dead.kill()
        dead.wait()
        begin = time.time()
        logs = [self.wait(p) for p in [self.task(i) for i in (1, 2, 0)]]
        self.assertLess(time.time() - begin, 12)
        self.assertNotIn("10.9.9.9:2", self.spec(logs[0])["worker"])
        self.assertEqual(self.spec(logs[0]), self.spec(logs[1]))
        self.assertEqual(os.listdir(meet), [])

    def test_different_numbers_of_tasks(self):
        ps = [self.task(0, tasks=3), self.task(1, tasks=4)]
        self.assertTrue(until(lambda: any(p.poll() == 1 for p in ps)))
        self.assertRegex(ps[0].log.read_text() + ps[1].log.read_text(), r"says that the job has (4 tasks, here it has 3|3 tasks, here it has 4)")


class Tcp(Meet):
    def test_e31_any_task_is_the_meeting_point(self):
        where = f"tcp://127.0.0.1:{free_port()}"
        logs = [self.wait(p) for p in [self.task(i, where=where) for i in (1, 2, 0)]]
        self.assertEqual(self.spec(logs[0]), self.spec(logs[1]))

    def test_the_meeting_point_dies_before_all_have_met(self):
        port = free_port()
        where = f"tcp://127.0.0.1:{port}"
        first = self.task(1, where=where)
        self.assertTrue(until(lambda: listens(port), 60))
        second = self.task(2, where=where)
        time.sleep(0.5)
        first.kill()
        for p in [second, self.task(1, where=where, name="again"), self.task(0, where=where)]:
            self.wait(p)

    def test_wrong_meeting_points_are_named(self):
        server = http.server.HTTPServer(("127.0.0.1", 0), type("Quiet", (http.server.BaseHTTPRequestHandler,), {"log_message": lambda *a: None}))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log = self.wait(self.task(0, "--wait-timeout", "5", where=f"tcp://127.0.0.1:{server.server_port}"), 3)
        server.shutdown()
        server.server_close()
        self.assertIn("what answers there is no meeting point of Trainera", log)
        where = f"tcp://127.0.0.1:{free_port()}"
        a = self.task(0, "--job-id", "a", where=where, name="a")
        until(lambda: "waits since" in a.log.read_text(), 10)
        log = self.wait(self.task(1, "--job-id", "b", where=where), 1)
        self.assertIn("this is the meeting point of job 'a', not of 'b': two jobs need two ports", log)
        a.terminate()
        self.wait(a, 143)

    PROGRAM = ("sh", "-c", "echo spec '{cluster_spec}' {job_name} {task_index}; until test -e go; do sleep 0.1; done")

    def comes_back(self, victim):
        """Whoever is killed and started again at once, while what it had started is still ending, finds its place and its port."""
        port = free_port()
        where = f"tcp://127.0.0.1:{port}"
        ps = [self.task(0, where=where, program=self.PROGRAM)]
        self.assertTrue(until(lambda: listens(port), 60), ps[0].log.read_text())
        ps += [self.task(i, where=where, program=self.PROGRAM) for i in (1, 2)]
        for p in ps[1:]:
            self.assertTrue(until(lambda: "spec {" in p.log.read_text(), 60), p.log.read_text())
        self.assertTrue(until(lambda: "serving" in ps[0].log.read_text(), 60), ps[0].log.read_text())
        before = self.spec(ps[1].log.read_text())
        ps[victim].kill()
        ps[victim].wait()
        ps[victim] = self.task(victim, where=where, program=self.PROGRAM, name="again")
        mark = "serving" if victim == 0 else "spec {"
        self.assertTrue(until(lambda: mark in ps[victim].log.read_text(), 60), ps[victim].log.read_text())
        self.assertEqual(json.loads(re.search(r"cluster (\{.*\})", ps[victim].log.read_text())[1]), before)
        (self.dir / "go").touch()
        for p in ps:
            self.wait(p)

    def test_a_killed_worker_comes_back(self):
        self.comes_back(2)

    def test_a_killed_ps_that_was_the_meeting_point_comes_back(self):
        self.comes_back(0)

    def test_the_same_task_twice(self):
        where = f"tcp://127.0.0.1:{free_port()}"
        ps = [self.task(i, where=where, program=self.PROGRAM) for i in range(3)]
        self.assertTrue(until(lambda: all("spec {" in p.log.read_text() for p in ps[1:]), 60))
        twice = [self.task(i, where=where, name=f"twice.{i}") for i in (1, 2)]
        for p in twice:
            self.assertIn("runs already: pid", self.wait(p, 1))
        (self.dir / "go").touch()
        for p in ps:
            self.wait(p)


class Known(Meet):
    def known(self, job, index, spec, *args, program=("sh", "-c", "sleep 0.5"), name=None):
        log = self.dir / (name or f"{job}.{index}")
        with open(log, "ab") as f:
            p = subprocess.Popen([BIN, "launch", "--cluster_spec", json.dumps(spec), "--job_name", job, "--task_index", str(index), "--log-dir=", *args, "--", *program],
                                 cwd=self.dir, env=self.env, stdout=f, stderr=f)
        p.log = log
        self.procs.append(p)
        return p

    def test_a1_ps_ends_when_the_workers_say_so(self):
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        ps = [self.known("ps", 0, spec), self.known("worker", 0, spec), self.known("worker", 1, spec)]
        for p in ps:
            self.wait(p)

    def test_a4_a_worker_that_is_done_early_harms_nobody(self):
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        ps = self.known("ps", 0, spec)
        self.wait(self.known("worker", 0, spec, "--leave-early"))
        self.assertIsNone(ps.poll())
        self.wait(self.known("worker", 1, spec))
        self.wait(ps)

    def test_a4_a_server_stands_in_until_the_others_are_done(self):
        """Also while the ps is started again, which then has to learn from it that its program is done."""
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        ps, first = self.known("ps", 0, spec), self.known("worker", 0, spec, program=(sys.executable, "-c", STOOD_IN))
        done = lambda: b'"worker/0": {"state": "done"' in get(spec["ps"][0], "/job")
        self.assertTrue(until(done, 60), first.log.read_text())
        ps.kill()
        ps.wait()
        self.assertTrue(until(lambda: not listens(int(spec["ps"][0].split(":")[1])), 60))
        ps = self.known("ps", 0, spec)
        self.assertTrue(until(done, 60), ps.log.read_text())
        self.wait(self.known("worker", 1, spec, program=(sys.executable, "-c", STOOD_IN)))
        for p in (first, ps):
            self.wait(p)
        self.assertTrue(until(lambda: not listens(int(spec["worker"][0].split(":")[1])), 60))

    def test_a_ps_that_serves_on_is_not_waited_for(self):
        """Started by hand, it awaits nobody: a launcher ends with its program, though the other worker has never come."""
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        p = subprocess.Popen([BIN, "serve", "--cluster_spec", json.dumps(spec), "--job_name", "ps", "--task_index", "0"], cwd=self.dir, env=self.env, stderr=subprocess.DEVNULL)
        self.procs.append(p)
        self.wait(self.known("worker", 0, spec))
        self.assertIsNone(p.poll())

    def test_a4_who_stands_in_tells_for_whom_and_ends_on_request(self):
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        ps, first = self.known("ps", 0, spec), self.known("worker", 0, spec)
        self.assertTrue(until(lambda: "still there: worker/1 (--leave-early would not wait)" in first.log.read_text(), 60), first.log.read_text())
        first.terminate()
        self.wait(first, 143)
        self.wait(self.known("worker", 1, spec))
        self.wait(ps)

    def test_a_killed_launcher_takes_its_stand_in_along(self):
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        ps, first = self.known("ps", 0, spec), self.known("worker", 0, spec)
        self.assertTrue(until(lambda: b'"stand_in":true' in get(spec["worker"][0], "/status.json"), 60), first.log.read_text())
        first.kill()
        self.assertTrue(until(lambda: not listens(int(spec["worker"][0].split(":")[1])), 60))
        self.wait(self.known("worker", 1, spec))  # its end is known: nobody waits for more than the word of it
        self.wait(ps)

    def test_a2_a_missing_ps_is_named_with_the_reason(self):
        port = free_port()
        spec = {"ps": [f"127.0.0.1:{port}"], "worker": [f"127.0.0.1:{free_port()}"]}
        log = self.wait(self.known("worker", 0, spec, "--wait-timeout", "9", program=("sleep", "60")), 3)
        self.assertRegex(log, rf"worker/0 waits for ps/0 at 127\.0\.0\.1:{port} since \d+ s: .*[Cc]onnection refused.*; trying again every 2 s; giving up in")
        self.assertRegex(log, r"ending: ps/0 at 127\.0\.0\.1:\d+ was not there for \d+ s")

    def test_a3_a_worker_knows_what_the_chief_still_has_to_do(self):
        """It names the variables and their ps, and goes on when the chief is done, without a nap of half a minute."""
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        logs, procs = {}, {}
        for who in ("worker/1", "ps/0", "worker/0"):
            job, index = who.split("/")
            logs[who] = self.dir / who.replace("/", "-")
            with open(logs[who], "wb") as f:
                procs[who] = subprocess.Popen([EXAMPLES / "trainer", f"--ps_hosts={spec['ps'][0]}", f"--worker_hosts={','.join(spec['worker'])}", f"--job_name={job}",
                                               f"--task_index={index}", "--steps=50"], cwd=self.dir, env={**self.env, "TRAINERA_LOG": "info"}, stdout=f, stderr=f)
            self.procs.append(procs[who])
            if who == "ps/0":
                self.assertTrue(until(lambda: "waiting for the chief" in logs["worker/1"].read_text(), 60), logs["worker/1"].read_text())
        self.assertRegex(logs["worker/1"].read_text(),
                         r"waiting for the chief for \d+ s: it has not yet initialised \d+ variables: .*global_step.* on /job:ps/task:0.*; goes on as soon as it has")
        for who, p in procs.items():
            self.assertEqual(p.wait(60), 0, logs[who].read_text())
        self.assertIn("the chief has initialised everything", logs["worker/1"].read_text())

    def test_a6_a_refused_worker_tries_again_in_peace_and_gives_up(self):
        """Somebody accepts and hangs up: no tight loop, and an end."""
        listener = socket.create_server(("127.0.0.1", 0))
        tries = []

        def accept():
            while True:
                try:
                    s = listener.accept()[0]
                except OSError:
                    return
                tries.append(time.time())
                s.close()

        threading.Thread(target=accept, daemon=True).start()
        spec = {"ps": [f"127.0.0.1:{listener.getsockname()[1]}"], "worker": [f"127.0.0.1:{free_port()}"]}
        log = self.wait(self.known("worker", 0, spec, "--wait-timeout", "6", program=("sleep", "60")), 3)
        listener.close()
        self.assertLess(len(tries), 40)
        self.assertIn("ending: ps/0 at", log)

    @unittest.skipUnless(os.geteuid() == 0, "puts another /etc/hosts in place: needs root")
    def test_e36_names_are_resolved_again(self):
        """The ps moves to another address behind its name while a worker waits for it."""
        hosts, port = self.dir / "hosts", free_port()
        hosts.write_text("127.0.0.1 localhost\n127.0.0.2 pshost\n")
        spec = json.dumps({"ps": [f"pshost:{port}"], "worker": [f"127.0.0.1:{free_port()}"]})
        own = ["unshare", "--mount", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
        with open(self.dir / "worker", "ab") as f:
            worker = subprocess.Popen([*own, BIN, "launch", "--cluster_spec", spec, "--job_name", "worker", "--log-dir=", "--", "sh", "-c", "until test -e go; do sleep 0.2; done"],
                                      cwd=self.dir, env=self.env, stdout=f, stderr=f)
        worker.log = self.dir / "worker"
        self.procs.append(worker)
        self.assertTrue(until(lambda: "Connection refused" in worker.log.read_text(), 20), worker.log.read_text())
        hosts.write_text("127.0.0.1 localhost\n127.0.0.3 pshost\n")  # the same file, so that the mount shows it
        ps = subprocess.Popen([*own, BIN, "serve", "--cluster_spec", spec, "--job_name", "ps", "--bind", "127.0.0.3", "--await-done", "worker/0", "--log-level", "error"], env=self.env)
        self.procs.append(ps)
        self.assertTrue(until(lambda: b'"run"' in get(f"127.0.0.3:{port}", "/job"), 20))
        (self.dir / "go").touch()
        self.wait(worker)
        self.assertEqual(ps.wait(PATIENCE), 0)

    def test_e33_the_interface_is_chosen(self):
        """A task listens where it is told to, and nowhere else; a job on one machine on loopback only."""
        port = free_port()
        p = subprocess.Popen([BIN, "serve", "--bind", "127.0.0.2", "--port", str(port), "--log-level", "error"], env=self.env)
        self.procs.append(p)
        self.assertTrue(until(lambda: get(f"127.0.0.2:{port}", "/healthz")))
        self.assertEqual(get(f"127.0.0.1:{port}", "/healthz"), b"")
        log = self.wait(self.task(0, "--interface", "127.0.0.0/8", "--wait-timeout", "1", tasks=2), 3)
        self.assertNotIn("this machine has", log)
        log = self.wait(self.task(1, "--interface", "nosuch7", "--wait-timeout", "1", tasks=2, host=None), 1)
        self.assertRegex(log, "--interface=nosuch7: this machine has .*lo 127.0.0.1")

    def test_a_lost_worker_ends_the_job(self):
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        ps = [self.known("ps", 0, spec, "--peer-timeout", "4"), self.known("worker", 0, spec, "--peer-timeout", "4", program=("sleep", "60")),
              self.known("worker", 1, spec, program=("sleep", "60"))]
        board = lambda: json.loads(get(spec["ps"][0], "/job") or "{}").get("tasks", {}).get("worker/1", {}).get("state")
        self.assertTrue(until(lambda: board() == "run"))
        for pid in processes(self.mark):  # a machine that vanishes takes the keeper with it
            if b"task_index\x001" in cmdline(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        self.assertRegex(self.wait(ps[0], 4), r"worker/1 on \S+ has been silent for \d+ s without having said that it ended: giving up")
        self.assertNotEqual(ps[1].wait(PATIENCE), 0)

    def test_a_failure_before_all_have_come(self):
        """Who comes a little later hears of it instead of waiting for a ps that has gone."""
        spec = {"ps": [f"127.0.0.1:{free_port()}"], "worker": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"]}
        ps, first = self.known("ps", 0, spec), self.known("worker", 0, spec, program=("sh", "-c", "exit 6"))
        self.wait(first, 6)
        begin = time.time()
        self.assertIn("worker/0 failed with exit code 6", self.wait(self.known("worker", 1, spec, program=("sleep", "60")), 6))
        self.assertLess(time.time() - begin, 30)
        self.wait(ps, 6)

    def test_another_jobs_ps_answers(self):
        port = free_port()
        other = {"ps": [f"127.0.0.1:{port}"], "worker": [f"127.0.0.1:{free_port()}"]}
        ps = self.known("ps", 0, other, "--job-id", "theirs")
        until(lambda: "serving" in ps.log.read_text())
        log = self.wait(self.known("worker", 0, {**other, "worker": [f"127.0.0.1:{free_port()}"]}, "--job-id", "ours", "--wait-timeout", "7", program=("sleep", "60")), 3)
        self.assertIn("ps/0 of another job, theirs answers there", log)
        ps.terminate()
        ps.wait(PATIENCE)

    def test_a_worker_knows_only_itself_and_the_ps(self):
        """…and keeps its own index; the ps knows no worker at all."""
        port, me = free_port(), free_port()
        ps = subprocess.Popen([BIN, "serve", "--ps_hosts", f"127.0.0.1:{port}", "--job_name", "ps", "--await-done", "worker/3", "--log-level", "error"], env=self.env)
        self.procs.append(ps)
        p = self.known("worker", 3, {"ps": [f"127.0.0.1:{port}"], "worker": {"3": f"127.0.0.1:{me}"}}, program=("sh", "-c", "echo $TF_CONFIG; sleep 1"))
        self.assertIn('"worker": {"3": "127.0.0.1:%d"}}, "task": {"type": "worker", "index": 3}' % me, self.wait(p))
        self.assertEqual(ps.wait(PATIENCE), 0)


if __name__ == "__main__":
    unittest.main()
