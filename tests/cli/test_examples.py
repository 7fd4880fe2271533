#!/usr/bin/env python3
"""The examples as a reader would run them: alone, as a launched job, against plain servers; what they print is looked at."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_rendezvous import free_port  # noqa: E402

BIN = os.environ["TRAINERA_BIN"]
EXAMPLES = pathlib.Path(os.environ["TRAINERA_EXAMPLES"])
ENV = {**os.environ, "TRAINERA_LOG": "warn"}
ENV.pop("TF_CONFIG", None)


def run(*argv, cwd=None, timeout=120):
    done = subprocess.run([str(a) for a in argv], cwd=cwd, env=ENV, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


class Examples(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)

    def test_trainer_alone_and_again(self):
        run_dir = pathlib.Path(self.dir.name) / "run"
        out = run(EXAMPLES / "trainer", "--quiet", "--steps=400", f"--checkpoint_dir={run_dir}")
        self.assertRegex(out, r"alone/0: loss 0\.\d+")
        run(EXAMPLES / "trainer", "--quiet", "--steps=700", f"--checkpoint_dir={run_dir}")
        names = {p.name for p in run_dir.iterdir()}
        self.assertTrue({"checkpoint", "model.ckpt-400.index", "model.ckpt-700.index", "graph.pbtxt"} <= names, names)

    def test_trainer_launched(self):
        for sync in ([], ["--sync"]):
            with self.subTest(sync=sync):
                # Large batches: the loss of 64 examples alone varies between 0.3 and 0.7.
                out = run(BIN, "launch", "--ps=2", "--workers=2", "--log-dir=", "--", EXAMPLES / "trainer", "--quiet", "--steps=1000", "--batch_size=512", *sync)
                found = {k: float(v) for k, v in re.findall(r"worker/(\d): loss (\S+),", out)}
                self.assertEqual(set(found), {"0", "1"}, out)
                trained = [v for v in found.values() if v == v]
                if sync:
                    self.assertEqual(len(trained), 2, out)
                # Two that do not wait for each other: on a busy machine one may find every step done (nan), or have taken its last batch to variables of long ago;
                # and how far they come varies: of 13 runs of 600 steps beside other work 12 ended between 0.28 and 0.5, one at 0.74.
                self.assertLess(max(trained) if sync else min(trained), 0.6 if sync else 0.9, out)
                self.assertLess(max(trained), 1.5, out)  # log(4): knows nothing

    def test_trainer_by_flags(self):
        """Every task the same program, the ps too: it ends by itself."""
        ports = [str(free_port()) for _ in range(4)]
        hosts = [f"--ps_hosts=localhost:{ports[0]},localhost:{ports[1]}", f"--worker_hosts=localhost:{ports[2]},localhost:{ports[3]}"]
        tasks = [("ps", 0), ("ps", 1), ("worker", 1), ("worker", 0)]
        procs = [subprocess.Popen([EXAMPLES / "trainer", *hosts, f"--job_name={j}", f"--task_index={i}", "--quiet", "--steps=500"], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                 for j, i in tasks]
        for p, t in zip(procs, tasks):
            out, _ = p.communicate(timeout=60)
            self.assertEqual(p.returncode, 0, f"{t}: {out}")

    def test_a_worker_that_says_done_twice_counts_once(self):
        """`serve --done-queue` ends when each of two workers has said that it is done, not when one of them, started again, has said it twice."""
        ports = [free_port() for _ in range(3)]
        hosts = [f"--ps_hosts=localhost:{ports[0]}", f"--worker_hosts=localhost:{ports[1]},localhost:{ports[2]}"]
        ps = subprocess.Popen([BIN, "serve", *hosts, "--job_name=ps", "--task_index=0", "--done-queue=done_queue{task}"], env={**ENV, "TRAINERA_LOG": "info"}, stderr=subprocess.PIPE, text=True)
        self.addCleanup(ps.stderr.close)
        self.addCleanup(ps.kill)
        for worker in (0, 0):
            run(EXAMPLES / "hooks", *hosts, "--job_name=worker", f"--task_index={worker}")
        with self.assertRaises(subprocess.TimeoutExpired):
            ps.wait(1)
        run(EXAMPLES / "hooks", *hosts, "--job_name=worker", "--task_index=1")
        self.assertEqual(ps.wait(60), 0, ps.stderr.read())

    @unittest.skipIf(os.environ.get("SANITIZED") == "yes", "ten times as slow")
    def test_demo(self):
        """make demo: at least 97 % in under a minute, and nothing left running."""
        start = time.monotonic()
        demo = pathlib.Path(__file__).resolve().parents[2] / "tools/demo"
        out = subprocess.run([demo], env={**ENV, "DEMO_DIR": self.dir.name, "DEMO_BUILD": str(EXAMPLES.parent)}, capture_output=True, text=True, timeout=120)
        self.assertEqual(out.returncode, 0, out.stdout + out.stderr)
        self.assertGreaterEqual(float(re.search(r"^test accuracy: (\d+\.\d\d) %$", out.stdout, re.M)[1]), 97.0)
        self.assertLess(time.monotonic() - start, 60)
        self.assertTrue((pathlib.Path(self.dir.name) / "run/checkpoint").exists())
        for p in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                self.assertNotIn(self.dir.name.encode(), p.read_bytes(), "a task was left behind")
            except OSError:
                pass

    def test_hooks(self):
        out = run(BIN, "launch", "--ps=2", "--workers=2", "--log-dir=", "--", EXAMPLES / "hooks")
        self.assertEqual(len(re.findall(r"steps here, best loss 0\.0000", out)), 2, out)

    def test_coordinator_with_a_worker_that_dies(self):
        ports = [free_port() for _ in range(4)]
        spec = {"ps_hosts": f"localhost:{ports[0]}", "worker_hosts": ",".join(f"localhost:{p}" for p in ports[1:])}
        flags = [f"--{k}={v}" for k, v in spec.items()]
        servers = [subprocess.Popen([BIN, "serve", *flags, f"--job_name={j}", f"--task_index={i}"], env=ENV, stderr=subprocess.DEVNULL) for j, i in [("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2)]]
        try:
            c = subprocess.Popen([EXAMPLES / "coordinator", "--job_name=coordinator", *flags, "--steps=3000"], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            time.sleep(0.5)
            servers[2].send_signal(signal.SIGKILL)
            out, err = c.communicate(timeout=120)
            self.assertEqual(c.returncode, 0, out + err)
            w = [float(x) for x in re.search(r"w = (\S+) (\S+) (\S+) (\S+),", out).groups()]
            for got, want in zip(w, (1, 2, 3, 4)):
                self.assertAlmostEqual(got, want, delta=0.05)
        finally:
            for s in servers:
                s.kill()
                s.wait()


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=1))
