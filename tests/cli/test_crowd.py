#!/usr/bin/env python3
"""Many tasks meet, in a folder and over TCP, on one machine and on many (network and process namespaces): started in random order, some twice, some killed
and started again, two jobs at a time. All must meet, and none may mix. No TensorFlow needed.

    TRAINERA_BIN=build/trainera tests/cli/test_crowd.py [-v] [name…]

TRAINERA_SLOW=1: more tasks, more kills, and machines that vanish.
"""
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_launch import BIN, Case, processes, until  # noqa: E402
from test_rendezvous import free_port  # noqa: E402

SLOW = bool(os.environ.get("TRAINERA_SLOW"))
PATIENCE = 120
PROGRAM = ("sh", "-c", "echo spec '{cluster_spec}' {job_name} {task_index}; until test -e go; do sleep 0.5; done")


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True)


def no_namespaces():
    """Why there can be no other hosts here, or None."""
    if os.geteuid() != 0:
        return "makes network namespaces: needs root"
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "needs ip (iproute2) and unshare (util-linux)"
    name = f"trn-try-{os.getpid()}"
    r = ip("netns", "add", name)
    if r.returncode == 0:
        r = ip("-n", name, "link", "add", "try", "type", "bridge")
        ip("netns", "del", name)
    if r.returncode == 0:
        r = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "--uts", "true"], capture_output=True, text=True)
    return f"no namespaces here: {r.stderr.strip()}" if r.returncode else None


class Hosts:
    """Machines on one network: each with its own name, addresses, ports and processes. They share the file system. 10.213.0.(i + 1) is host i; or, v6, they
    have IPv6 only."""

    def __init__(self, n, v6=False):
        self.v6 = v6
        self.names = [f"trn-{os.getpid()}-{i}" for i in range(n)]
        self.switch = f"trn-{os.getpid()}-switch"
        self.do("netns", "add", self.switch)
        self.do("-n", self.switch, "link", "add", "br0", "type", "bridge")
        self.do("-n", self.switch, "link", "set", "br0", "up")
        for i, name in enumerate(self.names):
            self.do("netns", "add", name)
            self.do("-n", self.switch, "link", "add", f"port{i}", "type", "veth", "peer", "name", "eth0", "netns", name)
            self.do("-n", self.switch, "link", "set", f"port{i}", "master", "br0", "up")
            self.do("-n", name, "addr", "add", *([f"fd13::{i + 1}/64", "nodad"] if v6 else [f"10.213.0.{i + 1}/24"]), "dev", "eth0")
            self.do("-n", name, "link", "set", "lo", "up")
            self.do("-n", name, "link", "set", "eth0", "up")

    @staticmethod
    def do(*args):
        r = ip(*args)
        assert r.returncode == 0, (args, r.stderr)

    def address(self, i):
        return f"[fd13::{i + 1}]" if self.v6 else f"10.213.0.{i + 1}"

    def command(self, i):
        """In front of what is to run on host i; killing it is as if the machine had been switched off."""
        return ["ip", "netns", "exec", self.names[i], "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "sh", "-c", f'hostname host{i}; exec "$@"', "sh"]

    def cable(self, i, plugged):
        self.do("-n", self.switch, "link", "set", f"port{i}", "up" if plugged else "down")

    def end(self):
        for name in [*self.names, self.switch]:
            ip("netns", "del", name)


class Crowd(Case):
    hosts = None

    def setUp(self):
        super().setUp()
        self.rnd = random.Random(os.environ.get("TRAINERA_SEED", "7"))
        self.live = {}
        self.before = {}  # what tasks that were killed had said till then: some had met the others already
        self.addCleanup(lambda: [p.kill() for p in self.live.values() if p.poll() is None])

    def host_of(self, i):
        return i % len(self.hosts.names)

    def task(self, job, i, name="log"):
        log = self.dir / f"{name}.{job}.{i}"
        front = self.hosts.command(self.host_of(i)) if self.hosts else []
        where = [] if self.hosts else ["--host", "127.0.0.1"]
        with open(log, "ab") as f:
            p = subprocess.Popen([*front, BIN, "launch", "--rendezvous", self.where[job], "--job-id", job, "--tasks", str(self.n), "--index", str(i), "--ps", "2", *where,
                                  "--peer-timeout", "120", "--log-dir=", "--", *PROGRAM], cwd=self.dir, env=self.env, stdout=f, stderr=f)
        p.log = log
        return p

    def start(self, job, i):
        self.live[job, i] = self.task(job, i)

    def again(self, job, i):
        self.live[job, i].kill()
        self.live[job, i].wait()
        self.before[job, i] = len(self.lines((job, i)))
        self.start(job, i)

    def lines(self, key):
        """Every "cluster {…}" that this task has ever said: each start of it says one, once it has met the others."""
        return re.findall(r"launch +\| cluster (\{.*\})", self.live[key].log.read_text())

    def has_met(self, key):
        return len(self.lines(key)) > self.before.get(key, 0)

    def meet(self, n, kills, twice, late):
        """`n` tasks of each job; some killed and started again before all have met, some started twice, `late`: some killed afterwards."""
        self.n = n
        todo = [(job, i) for job in self.where for i in range(n)]
        self.rnd.shuffle(todo)
        victims, doubles = set(self.rnd.sample(todo[: len(todo) * 3 // 4], kills)), self.rnd.sample(todo, twice)
        for key in todo:
            self.start(*key)
            for v in [v for v in victims if v in self.live and self.rnd.random() < 0.3]:
                victims.discard(v)
                self.again(*v)
        for v in victims:
            self.again(*v)
        for key in todo:
            self.assertTrue(until(lambda: self.has_met(key), PATIENCE), (key, self.live[key].log.read_text()))
        extra = [self.task(*key, name="twice") for key in doubles]
        for p in extra:
            self.assertEqual(p.wait(PATIENCE), 1, p.log.read_text())
            self.assertIn("runs already", p.log.read_text())
        for key in self.rnd.sample(todo, late):
            self.again(*key)
            self.assertTrue(until(lambda: self.has_met(key), PATIENCE), (key, self.live[key].log.read_text()))
        specs = {job: {self.lines(key)[-1] for key in todo if key[0] == job} for job in self.where}
        self.assertEqual({job: len(s) for job, s in specs.items()}, {job: 1 for job in self.where}, specs)
        addresses = {job: [a for v in json.loads(next(iter(s))).values() for a in v] for job, s in specs.items()}
        self.assertEqual({job: len(set(a)) for job, a in addresses.items()}, {job: n for job in self.where}, addresses)
        if self.hosts:
            for a in addresses.values():
                self.assertEqual({x.rsplit(":", 1)[0] for x in a}, {self.hosts.address(self.host_of(i)) for i in range(n)})
        else:  # on one machine a port is one task's
            self.assertFalse(set(addresses["a"]) & set(addresses["b"]))
        (self.dir / "go").touch()
        for key, p in self.live.items():
            try:
                p.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                pass
            self.assertEqual(p.returncode, 0, (key, p.log.read_text()))
        self.assertTrue(until(lambda: not processes(self.mark), 10), processes(self.mark))
        if (self.dir / "meet").exists():
            self.assertEqual(os.listdir(self.dir / "meet"), [])

    def test_folder(self):
        self.where = {job: str(self.dir / "meet") for job in "ab"}
        self.meet(32 if SLOW else 16, kills=16 if SLOW else 6, twice=8 if SLOW else 3, late=6 if SLOW else 1)

    def test_tcp(self):
        self.where = {job: f"tcp://127.0.0.1:{free_port()}" for job in "ab"}
        self.meet(32 if SLOW else 8, kills=16 if SLOW else 4, twice=8 if SLOW else 1, late=6 if SLOW else 1)


WHY_NOT = no_namespaces()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class OnManyHosts(Crowd):
    def setUp(self):
        super().setUp()
        self.hosts = Hosts(8 if SLOW else 3)
        self.addCleanup(self.hosts.end)

    def test_folder(self):
        self.where = {job: str(self.dir / "meet") for job in "ab"}
        # Who is killed here cannot be seen to be gone by the others' hosts: it is when its file has not been touched for 12 s.
        self.meet(32 if SLOW else 6, kills=12 if SLOW else 0, twice=6 if SLOW else 1, late=4 if SLOW else 0)

    def test_tcp(self):
        self.where = {"a": f"tcp://{self.hosts.address(0)}:7001", "b": f"tcp://{self.hosts.address(1)}:7001"}
        self.meet(32 if SLOW else 6, kills=12 if SLOW else 2, twice=6 if SLOW else 0, late=4 if SLOW else 1)

    def test_e35_hosts_that_have_only_ipv6(self):
        self.hosts.end()
        self.hosts = Hosts(2, v6=True)
        self.addCleanup(self.hosts.end)
        for i, where in enumerate((str(self.dir / "meet"), f"tcp://{self.hosts.address(0)}:7001")):
            with self.subTest(where=where):
                (self.dir / "go").unlink(missing_ok=True)
                self.where = {"ab"[i]: where}
                self.meet(4, kills=0, twice=0, late=i)
                self.live.clear()

    @unittest.skipUnless(SLOW, "slow: a vanished machine is noticed after ten seconds (TRAINERA_SLOW=1)")
    def test_a_machine_vanishes(self):
        """Without a word, not even a FIN; its task, started again, is not refused."""
        for where in (f"tcp://{self.hosts.address(0)}:7001", str(self.dir / "meet")):
            with self.subTest(where=where):
                (self.dir / "go").unlink(missing_ok=True)
                self.where, self.n = {"a": where}, 4
                for i in range(4):
                    self.start("a", i)
                for i in range(4):
                    self.assertTrue(until(lambda: self.lines(("a", i)), PATIENCE), self.live["a", i].log.read_text())
                before = len(self.lines(("a", 3)))
                self.hosts.cable(3, False)
                self.live["a", 3].kill()
                self.live["a", 3].wait()
                self.hosts.cable(3, True)
                self.start("a", 3)
                self.assertTrue(until(lambda: len(self.lines(("a", 3))) > before, PATIENCE), self.live["a", 3].log.read_text())
                self.assertEqual(len({self.lines(("a", i))[-1] for i in range(4)}), 1)
                (self.dir / "go").touch()
                for p in self.live.values():
                    self.assertEqual(p.wait(PATIENCE), 0, p.log.read_text())
                self.live.clear()
                for log in self.dir.glob("log.*"):
                    log.unlink()


if __name__ == "__main__":
    unittest.main()
