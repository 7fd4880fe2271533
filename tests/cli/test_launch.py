#!/usr/bin/env python3
"""trainera launch from outside: what programs are given, how jobs end, what is left behind. No TensorFlow needed.

    TRAINERA_BIN=build/trainera tests/cli/test_launch.py [-v] [name…]

TRAINERA_KILLS=N is the number of random kills of test_kills_leave_nothing: 8, with TRAINERA_SLOW=1 a hundred.
"""
import fcntl
import json
import os
import pathlib
import pty
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import unittest

BIN = os.environ.get("TRAINERA_BIN") or str(pathlib.Path(__file__).resolve().parents[2] / "build" / "trainera")
EXAMPLES = pathlib.Path(os.environ.get("TRAINERA_EXAMPLES") or pathlib.Path(BIN).parent / "examples")
KILLS = int(os.environ.get("TRAINERA_KILLS") or (100 if os.environ.get("TRAINERA_SLOW") else 8))
PATIENCE = 30


def processes(mark):
    """pids of living processes that have `mark` in their environment."""
    found = []
    for p in pathlib.Path("/proc").iterdir():
        if p.name.isdigit():
            try:
                if mark.encode() in (p / "environ").read_bytes() and (p / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(p.name))
            except OSError:
                pass
    return found


def cmdline(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has just ended


def listens(port):
    with socket.socket() as s:
        s.settimeout(2)
        return s.connect_ex(("127.0.0.1", port)) == 0


def until(what, seconds=PATIENCE, step=0.02):
    end = time.time() + seconds
    while time.time() < end:
        got = what()
        if got:
            return got
        time.sleep(step)
    return what()


# Worker 0 listens at its address and is done; worker 1 looks until somebody stands in there for it.
STOOD_IN = """
import os, socket, sys, time
h, p = os.environ['TRAINERA_WORKER_HOSTS'].split(',')[0].split(':')
if os.environ['TRAINERA_TASK_INDEX'] == '0':
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((h, int(p)))
    s.listen()
    sys.exit(0)
end = time.time() + 60
while time.time() < end:
    got = b''
    try:
        s = socket.create_connection((h, int(p)), 5)
        s.sendall(b'GET /status.json HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')
        while chunk := s.recv(9999): got += chunk
    except OSError:
        pass
    if got:
        assert b'200' in got and b'"task":{"name":"worker/0"' in got and b'"stand_in":true' in got, got
        sys.exit(0)
    time.sleep(0.05)
sys.exit('nobody stands in')
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory()
        self.addCleanup(self.tmp.cleanup)
        self.dir = pathlib.Path(self.tmp.name)
        self.mark = f"LAUNCH_TEST={os.getpid()}.{random.random()}"
        name, value = self.mark.split("=")
        self.env = {**{k: v for k, v in os.environ.items() if k != "TF_CONFIG"}, name: value}
        self.addCleanup(self.reap)

    def reap(self):
        for pid in processes(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def start(self, *args, **kw):
        out, err = open(self.dir / "out", "wb"), open(self.dir / "err", "wb")
        with out, err:
            p = subprocess.Popen([BIN, "launch", *args], cwd=self.dir, env={**self.env, **kw.pop("env", {})}, stdout=out, stderr=err, **kw)
        self.addCleanup(lambda: p.poll() is None and p.kill())
        return p

    def launch(self, *args, code=0, **kw):
        p = self.start(*args, **kw)
        p.wait(PATIENCE * 2)
        self.out, self.err = (self.dir / "out").read_text(), (self.dir / "err").read_text()
        self.assertEqual(p.returncode, code, self.out + self.err)
        self.assertEqual(processes(self.mark), [])
        return self.out

    def ports(self):
        spec = re.search(r"cluster (\{.*\})", (self.dir / "err").read_text())
        return [int(a.rsplit(":", 1)[1]) for job in json.loads(spec[1]).values() for a in job] if spec else []

    def nothing_left(self, seconds=5):
        left = until(lambda: not processes(self.mark), seconds)
        self.assertTrue(left, processes(self.mark))
        for port in self.ports():  # a process that is going loses its memory, by which it is known, before its sockets
            self.assertTrue(until(lambda: not listens(port), PATIENCE), port)


class Launch(Case):
    def test_everybody_knows_the_cluster(self):
        out = self.launch("--ps", "2", "--workers", "2", "--chief", "--evaluator", "--log-dir", "logs", "--",
                          "sh", "-c", "echo '{job_name} {task_index} {ps_hosts} {worker_hosts} {other} {\"a\": 1}'; echo config $TF_CONFIG; echo wrong >&2")
        seen = {}
        for line in out.splitlines():
            who, text = line.split(" | ", 1)
            if text.startswith("config "):
                seen[who.strip()] = json.loads(text[7:])
        self.assertEqual(set(seen), {"chief/0", "worker/0", "worker/1", "evaluator/0"})
        cluster = seen["chief/0"]["cluster"]
        self.assertEqual({j: len(a) for j, a in cluster.items()}, {"chief": 1, "ps": 2, "worker": 2})
        for who, config in seen.items():
            self.assertEqual(config["cluster"], cluster)
            self.assertEqual("{type}/{index}".format(**config["task"]), who)
        self.assertIn(f"worker/1    | worker 1 {','.join(cluster['ps'])} {','.join(cluster['worker'])} {{other}} {{\"a\": 1}}", out)
        self.assertIn("worker/1    | wrong", self.err)
        self.assertIn("worker 1 ", (self.dir / "logs/worker-1.log").read_text())
        self.assertEqual(sorted(p.name for p in (self.dir / "logs").iterdir()),
                         ["chief-0.log", "evaluator-0.log", "ps-0.log", "ps-1.log", "worker-0.log", "worker-1.log"])

    def test_a1_ps_ends_with_the_workers(self):
        begin = time.time()
        self.launch("--ps", "2", "--workers", "3", "--", "sh", "-c", "exit 0")
        self.assertLess(time.time() - begin, PATIENCE)

    def test_a4_a_server_stands_in_for_a_worker_that_is_done(self):
        """A session that a slower worker opens asks every task of the cluster whether it is there; one that has ended must still answer."""
        self.launch("--workers", "2", "--", sys.executable, "-c", STOOD_IN)

    def test_ps_serves_from_the_start(self):
        self.launch("--workers", "2", "--", sys.executable, "-c",
                    "import os, socket; h, p = os.environ['TRAINERA_PS_HOSTS'].split(':'); s = socket.create_connection((h, int(p)));"
                    "s.sendall(b'GET /healthz HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n'); assert b'200' in s.recv(999)")

    def test_exit_code_of_the_first_failure(self):
        self.launch("--workers", "3", "--", "sh", "-c", "test {task_index} = 1 && exit 7; sleep 60", code=7)
        self.assertIn("worker/1 ended with exit code 7; ending the others", self.err)
        self.launch("--workers", "2", "--", "sh", "-c", "test {task_index} = 1 && kill -SEGV $$; sleep 60", code=139)
        self.launch("--workers", "1", "--", "no-such-program", code=127)
        self.assertIn("cannot run no-such-program", self.err)

    def test_keep_going(self):
        out = self.launch("--workers", "2", "--keep-going", "--", "sh", "-c", "test {task_index} = 1 && exit 7; sleep 1; echo done", code=7)
        self.assertIn("worker/0 | done", out)

    def test_end_with_chief(self):
        self.launch("--workers", "2", "--chief", "--end-with-chief", "--", "sh", "-c", "test {job_name} = chief || sleep 60")

    def test_restarts(self):
        out = self.launch("--workers", "2", "--max-restarts", "2", "--", "sh", "-c", "echo x >>tries.{task_index}; test $(wc -l <tries.{task_index}) = 3 && echo fine")
        self.assertEqual(out.count("fine"), 2)
        self.launch("--workers", "1", "--max-restarts", "1", "--", "sh", "-c", "echo y >>other; exit 5", code=5)
        self.assertEqual((self.dir / "other").read_text(), "y\ny\n")
        self.assertIn("has no restarts left", self.err)

    def test_a_restarted_ps_keeps_its_port(self):
        p = self.start("--workers", "1", "--max-restarts", "1", "--", "sh", "-c", "echo up; until test -e go; do sleep 0.1; done")
        until(lambda: b"up" in (self.dir / "out").read_bytes())
        port = self.ports()[0]
        ps = [pid for pid in processes(self.mark) if b"--listen-fd" in cmdline(pid)]
        os.kill(ps[0], signal.SIGKILL)
        until(lambda: "restart 1" in (self.dir / "err").read_text())
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as s:
            s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            self.assertIn(b"200", s.recv(999))
        (self.dir / "go").touch()
        self.assertEqual(p.wait(PATIENCE), 0)

    def test_e30_a_programs_port_is_kept_for_it(self):
        """Nobody who asks for a free port gets it, and the program itself can listen on it."""
        self.launch("--workers", "1", "--", sys.executable, "-c", """
import json, os, socket
port = int(os.environ['TRAINERA_WORKER_HOSTS'].split(':')[1])
try:
    socket.socket().bind(('', port))
    raise SystemExit('a careless process got the port')
except OSError:
    pass
for family, any in ((socket.AF_INET6, '::'), (socket.AF_INET, '')):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
    s.bind((any, port))
    s.listen()
    socket.create_connection(('127.0.0.1', port), 5)
    s.close()
""")

    STUBBORN = "trap '' TERM INT; (setsid sh -c 'trap \"\" TERM INT HUP; sleep 300 & sleep 300') & echo up; sleep 300; sleep 300"

    def test_signals_end_everything(self):
        for sig, code in (signal.SIGINT, 130), (signal.SIGTERM, 143):
            p = self.start("--workers", "2", "--", "sh", "-c", self.STUBBORN)
            until(lambda: (self.dir / "out").read_bytes().count(b"up") == 2)
            begin = time.time()
            p.send_signal(sig)
            self.assertEqual(p.wait(PATIENCE), code)
            self.assertLess(time.time() - begin, 5.5)
            self.nothing_left(0.5)

    def test_programs_may_save_when_told_to_end(self):
        p = self.start("--workers", "1", "--", "sh", "-c", "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done")
        until(lambda: b"up" in (self.dir / "out").read_bytes())
        p.terminate()
        self.assertEqual(p.wait(PATIENCE), 143)
        self.assertIn("saved", (self.dir / "out").read_text())

    def test_what_a_worker_leaves_behind_goes_with_it(self):
        """A daemon of a worker that has ended does not live until the end of the job."""
        p = self.start("--workers", "2", "--", "sh", "-c", "test {task_index} = 0 || { sleep 300; }; setsid sleep 299 & echo up")
        until(lambda: b"up" in (self.dir / "out").read_bytes())
        daemon = lambda: [pid for pid in processes(self.mark) if b"sleep\0299" in cmdline(pid)]
        self.assertTrue(until(lambda: not daemon(), 5), daemon())
        self.assertIsNone(p.poll())

    def test_kill_of_the_launcher(self):
        p = self.start("--workers", "2", "--", "sh", "-c", self.STUBBORN)
        until(lambda: (self.dir / "out").read_bytes().count(b"up") == 2)
        p.kill()
        p.wait()
        self.nothing_left()

    # Each worker starts a child, and a daemon in a session of its own.
    LITTER = ("sh", "-c", "sleep 0.3 & setsid sleep 1.5 & sleep 1; echo {task_index}")

    def role(self, pid, front):
        """Who it is, as a person would say."""
        line = cmdline(pid).replace(b"\0", b" ")
        if pid == front:
            return "launcher"
        if b" launch " in line:
            return "keeper"
        try:
            mine = re.search(rb"TRAINERA_LAUNCH=\w+:(\w+)", pathlib.Path(f"/proc/{pid}/environ").read_bytes())
        except OSError:
            mine = None
        return mine[1].decode() if mine else "other"

    def test_kills_leave_nothing(self):
        """kill -9 of any process of a job, the launcher and its keeper among them, at any time: no process, no listening port, no file is left."""
        rnd = random.Random(os.environ.get("TRAINERA_SEED", "5"))
        worst, killed = 0, {}
        files = lambda: sorted(f.name for f in pathlib.Path(tempfile.gettempdir()).glob("trainera-py-*"))
        before = files()
        for i in range(KILLS * 3):
            if sum(killed.values()) >= KILLS:
                break
            real = i % 2 and (EXAMPLES / "trainer").exists()
            program = (EXAMPLES / "trainer", "--quiet", "--steps=3000") if real else self.LITTER
            p = self.start("--ps", "2", "--workers", "2", "--chief", "--max-restarts", str(rnd.choice([0, 0, 1])), "--grace", "1", *["--native-workers"] * rnd.choice([0, 1]), "--log-dir=",
                           "--", *program)
            until(lambda: len(processes(self.mark)) > 1 or p.poll() is not None, step=0.002)
            time.sleep(rnd.random() * rnd.choice([0.02, 0.2, 1.0]))
            pids = processes(self.mark)
            if not pids:
                p.wait(PATIENCE)
                continue
            roles = {pid: self.role(pid, p.pid) for pid in pids}
            who = rnd.choice(sorted(set(roles.values())))  # each role as often as the others
            victim = rnd.choice([pid for pid in pids if roles[pid] == who])
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
            killed[who] = killed.get(who, 0) + 1
            begin = time.time()
            try:
                p.wait(PATIENCE * 2)
            except subprocess.TimeoutExpired:
                self.fail(f"kill {i} of {who}: the launcher does not end: {(self.dir / 'err').read_text()}")
            self.nothing_left(PATIENCE)
            worst = max(worst, time.time() - begin)
        print(f"{sum(killed.values())} kills ({', '.join(f'{n} {who}' for who, n in sorted(killed.items()))}), nothing left; the slowest end took {worst:.1f} s", file=sys.stderr)
        self.assertEqual(files(), before)

    def on_a_terminal(self, *args, say=b"", code=0):
        """What a person at a terminal sees of a job; `say` is typed when the program asks."""
        me, other = pty.openpty()
        p = subprocess.Popen([BIN, "launch", *args], cwd=self.dir, env=self.env, stdin=other, stdout=other, stderr=other, start_new_session=True,
                             preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.addCleanup(lambda: p.poll() is None and p.kill())
        os.close(other)
        seen, end = b"", time.time() + 60
        while time.time() < end:
            if select.select([me], [], [], 0.2)[0]:
                try:
                    got = os.read(me, 65536)
                except OSError:  # nobody has it open any more
                    break
                seen += got
                if say and b"? " in seen:
                    os.write(me, say)
                    say = b""
        os.close(me)
        self.assertEqual(p.wait(PATIENCE), code, seen)
        self.assertEqual(processes(self.mark), [])
        return seen.decode()

    def test_terminal(self):
        """One task has the terminal, all of it; the others' lines are in their logs."""
        program = "import os, sys, time\nif '{task_index}' == '0': print(sys.stdin.isatty(), sys.stdout.isatty(), os.tcgetpgrp(0) == os.getpgrp()); print('heard', input('? '))\nelse: print('chatter')"
        seen = self.on_a_terminal("--workers", "2", "--terminal", "worker/0", "--log-dir", "logs", "--", sys.executable, "-c", program, say=b"me\n")
        self.assertIn("True True True\r\n? ", seen)
        self.assertIn("\r\nheard me\r\n", seen)
        self.assertNotIn("chatter", seen)
        self.assertIn("chatter", (self.dir / "logs/worker-1.log").read_text())
        self.assertEqual(sorted(os.listdir(self.dir / "logs")), ["ps-0.log", "worker-1.log"])

    def test_terminal_and_ctrl_c(self):
        """Ctrl-C reaches the task that has the terminal, and ends the job."""
        program = "trap 'sleep 0.5; echo caught; exit 3' INT; echo '? '; while :; do sleep 0.1; done"
        seen = self.on_a_terminal("--workers", "2", "--terminal", "worker/0", "--log-dir=", "--", "sh", "-c", program, say=b"\x03", code=130)
        self.assertIn("caught", seen)
        self.assertIn("Ctrl-C: ending everything", seen)

    def test_terminal_and_a_failure_elsewhere(self):
        """Its last lines are shown; and the task with the terminal is ended, with what it had started."""
        self.launch("--workers", "2", "--terminal", "worker/0", "--log-dir=", "--", "sh", "-c",
                    "test {task_index} = 0 && { setsid sleep 300 & sleep 300; }; for i in $(seq 100); do echo line $i; done; echo alas >&2; exit 6", code=6)
        shown = re.findall(r"worker/1 \| (.*)", self.err)
        self.assertEqual(len(shown), 20)
        self.assertIn("alas", shown)
        self.assertEqual(self.out, "")
        self.launch("--terminal", "worker/7", "--", "true", code=1)
        self.assertIn("--terminal=worker/7: the job has no such task; worker/1 is one", self.err)

    def test_wrong_flags(self):
        self.launch("--workers", "1", code=2)
        self.assertIn("which program?", self.err)
        self.launch("--workers", "0", "--", "true", code=1)
        self.assertIn("nobody would run the program", self.err)
        self.launch("--color", "green", "--", "true", code=1)

    def test_color(self):
        out = self.launch("--color", "always", "--workers", "1", "--log-dir=", "--", "echo", "hello")
        self.assertRegex(out, "\033\\[\\d+mworker/0 \\|\033\\[0m hello")
        self.assertEqual(sorted(os.listdir(self.dir)), ["err", "out"])


if __name__ == "__main__":
    unittest.main()
