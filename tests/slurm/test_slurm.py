#!/usr/bin/env python3
"""trainera launch in a real Slurm (slurm_cluster.py): roles, addresses, endings, with TensorFlow's own resolver in the same job.

    TRAINERA_BIN=build/trainera tests/slurm/test_slurm.py [-v] [name…]     TENSORFLOW=python: a Python that has TensorFlow; without it those tests are skipped
"""
import json
import os
import pathlib
import re
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from slurm_cluster import SlurmCluster, available  # noqa: E402

BIN = os.environ.get("TRAINERA_BIN") or str(pathlib.Path(__file__).resolve().parents[2] / "build" / "trainera")
EXAMPLES = pathlib.Path(os.environ.get("TRAINERA_EXAMPLES") or pathlib.Path(BIN).parent / "examples")
PYTHON = os.environ.get("TENSORFLOW")
SLOW = os.environ.get("TRAINERA_SLOW") == "1"  # make test-all
COUNTER = pathlib.Path(BIN).parent / "tests" / "interop" / "c" / "jobcounter"
TFJOB = pathlib.Path(__file__).resolve().parent / "tfjob.py"
# Two ps and six workers on two nodes of four tasks each.
ORDERS = {"first": "--ps 2", "roles": "--roles ps,worker,worker,worker,ps,worker,worker,worker", "spread": "--ps 2 --spread-ps"}
SHOW = ("sh", "-c", "echo '{job_name} {task_index}' on $(hostname) as $SLURM_PROCID; echo spec $TF_CONFIG; sleep 1")

TF_COUNTER = """
import json, os, pathlib, sys, time
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
n_ps = len(config["cluster"]["ps"])
resolver = tf.distribute.cluster_resolver.SlurmClusterResolver({"ps": n_ps, "worker": int(os.environ["SLURM_STEP_NUM_TASKS"]) - n_ps}, gpus_per_node=8, gpus_per_task=1, auto_set_gpu=False)
cluster = resolver.cluster_spec()
assert cluster.as_dict() == config["cluster"], (cluster.as_dict(), config["cluster"])
job, index = resolver.get_task_info()
assert {"type": job, "index": index} == config["task"], (job, index)
server = tf.distribute.Server(cluster, job_name=job, task_index=index)
with tf.device("/job:ps/task:0"):
    counter = v1.get_variable("counter", [], tf.int64, initializer=v1.zeros_initializer())
    add = counter.assign_add(1)
init = v1.train.SessionManager.__init__
v1.train.SessionManager.__init__ = lambda self, *a, **k: init(self, *a, **{**k, "recovery_wait_secs": 1})
gone = pathlib.Path("pid.1")
while index == 2 and not (gone.exists() and not os.path.exists("/proc/" + gone.read_text())):  # its session has to ask worker/1, which has ended
    time.sleep(0.1)
with v1.train.MonitoredTrainingSession(master=server.target, is_chief=index == 0) as s:
    for _ in range(10):
        value = s.run(add)
print("counter", value)
pathlib.Path("tmp.%d" % index).write_text(str(os.getpid()))
os.rename("tmp.%d" % index, "pid.%d" % index)
"""


@unittest.skipUnless(available(), "needs root and the packages of tools/setup slurm")
class Slurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = SlurmCluster(nodes=2, cpus=4)
        cls.enterClassContext(cls.cluster)

    def setUp(self):
        tmp = tempfile.TemporaryDirectory()
        self.addCleanup(tmp.cleanup)
        self.dir = pathlib.Path(tmp.name)

    def srun(self, *args, code=0, timeout=120):
        r = self.cluster.run("srun", "-D", str(self.dir), *args, timeout=timeout)
        self.assertEqual(r.returncode, code, r.stdout + r.stderr)
        return r.stdout, r.stderr

    def completed(self, script, seconds=300):
        """Submits a batch script, waits for the job's end; scontrol says COMPLETED 0:0. Returns what was printed."""
        (self.dir / "job.sbatch").write_text(script)
        r = self.cluster.run("sbatch", "--parsable", "-D", str(self.dir), str(self.dir / "job.sbatch"), env={"PATH": f"{pathlib.Path(BIN).parent}:{self.cluster.env['PATH']}"})
        self.assertEqual(r.returncode, 0, r.stderr)
        job, end = r.stdout.strip(), time.monotonic() + seconds
        while True:
            show = self.cluster.run("scontrol", "show", "job", job).stdout
            state = re.search(r"JobState=(\w+)", show)[1]
            if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING") or time.monotonic() > end:
                break
            time.sleep(0.3)
        logs = "".join(p.read_text() for p in self.dir.glob("*.out"))
        if state == "RUNNING":
            self.cluster.run("scancel", job)
        self.assertEqual((state, re.search(r"ExitCode=(\S+)", show)[1]), ("COMPLETED", "0:0"), logs)
        return logs

    def eight(self, order, *programs, seconds=300):
        """One job of 2 nodes × 4 tasks: a step for each program, one after the other. What each step printed; its ps ended because its workers had."""
        steps = [f"srun trainera launch {ORDERS[order]} --port-base 8888 --log-dir= --color never -- {program} >step{i}.log 2>&1\n" for i, program in enumerate(programs)]
        try:
            self.completed("#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --output=%x-%j.out\nset -e\n" + "".join(steps), seconds)
        except AssertionError as e:
            raise AssertionError(f"{e}\n" + "".join(f"{p.name}:\n{p.read_text()[-4000:]}" for p in sorted(self.dir.glob("step*.log")))) from None
        logs = [(self.dir / f"step{i}.log").read_text() for i in range(len(programs))]
        for log in logs:
            self.assertEqual(log.count("all 6 programs of the job have ended: ending"), 2, log)
            ps = ["node1:8888", "node1:8889"] if order == "first" else ["node1:8888", "node2:8888"]
            self.assertIn('cluster {"ps": ' + json.dumps(ps), log)
        return logs

    def lines(self, log, found):
        """The line through 3 x + 2 that each worker found: six of them race on two ps, so near is all that can be asked."""
        rows = re.findall(found + r"y = (\S+) x \+ (\S+)$", log, re.M)
        self.assertTrue(rows, log)
        for row in rows:
            for got, drawn in zip(row, (3, 2)):
                self.assertAlmostEqual(float(got), drawn, delta=0.3, msg=log)
        return len(rows)

    def spec(self, out):
        specs = {m for m in re.findall(r'"cluster": (\{.*?\}), "task"', out)}
        self.assertEqual(len(specs), 1, out)
        return json.loads(specs.pop())

    def test_e32_the_first_tasks_are_ps(self):
        out, err = self.srun("-N2", "-n8", BIN, "launch", "--ps", "2", "--port-base", "8888", "--log-dir=", "--", *SHOW)
        self.assertEqual(self.spec(out), {"ps": ["node1:8888", "node1:8889"],
                                          "worker": ["node1:8890", "node1:8891", "node2:8888", "node2:8889", "node2:8890", "node2:8891"]})
        self.assertEqual(sorted(re.findall(r"worker (\d) on (node\d) as (\d)", out)),
                         [("0", "node1", "2"), ("1", "node1", "3"), ("2", "node2", "4"), ("3", "node2", "5"), ("4", "node2", "6"), ("5", "node2", "7")])
        self.assertEqual(err.count("all 6 programs of the job have ended: ending"), 2, err)

    def test_e32_roles_and_spread(self):
        want = {"ps": ["node1:8888", "node2:8888"], "worker": ["node1:8889", "node1:8890", "node1:8891", "node2:8889", "node2:8890", "node2:8891"]}
        roles = "ps,worker,worker,worker,ps,worker,worker,worker"
        self.assertEqual(self.spec(self.srun("-N2", "-n8", BIN, "launch", "--roles", roles, "--port-base", "8888", "--log-dir=", "--", *SHOW)[0]), want)
        self.assertEqual(self.spec(self.srun("-N2", "-n8", BIN, "launch", "--ps", "2", "--spread-ps", "--port-base", "8888", "--log-dir=", "--", *SHOW)[0]), want)

    def test_e32_uneven_steps_reserved_ports_and_distributions(self):
        out, _ = self.srun("-N2", "-n3", "--resv-ports=2", BIN, "launch", "--ps", "1", "--log-dir=", "--", *SHOW)
        ports = [int(a.rsplit(":")[-1]) for job in self.spec(out).values() for a in job]
        self.assertTrue(all(12000 <= p <= 12999 for p in ports), ports)
        r = self.cluster.run("srun", "-K", "-N2", "-n4", "-m", "cyclic", BIN, "launch", "--ps", "1", "--log-dir=", "--", "true")
        self.assertIn("start the step with srun -m block", r.stderr)

    def test_a_failed_worker_ends_the_job(self):
        begin = time.time()
        _, err = self.srun("-N2", "-n4", BIN, "launch", "--ps", "1", "--log-dir=", "--", "sh", "-c", "test {task_index} = 1 && exit 9; sleep 60", code=9)
        self.assertLess(time.time() - begin, 45)
        self.assertIn("worker/1 failed with exit code 9", err)

    def test_rendezvous_picks_the_network(self):
        """Roles from Slurm, addresses of a chosen network from the meeting in a shared folder."""
        out, _ = self.srun("-N2", "-n4", BIN, "launch", "--ps", "1", "--rendezvous", str(self.dir / "meet"), "--interface", self.cluster.net + ".0/24", "--log-dir=", "--", *SHOW)
        spec = self.spec(out)
        self.assertEqual({a.rsplit(":")[0] for job in spec.values() for a in job}, {self.cluster.net + ".1", self.cluster.net + ".2"})

    def test_init_slurm_runs_to_completion(self):
        """The sbatch script of `trainera init slurm`, as it is but for the numbers: the job says COMPLETED 0:0."""
        r = self.cluster.run(BIN, "init", "slurm", "--nodes", "2", "--tasks-per-node", "2", "--ps", "1", "--", "sh", "-c", "echo I am {job_name}/{task_index}; sleep 1")
        self.assertEqual(r.returncode, 0, r.stderr)
        logs = self.completed(r.stdout)
        self.assertIn("I am worker/2", logs)

    @unittest.skipUnless(PYTHON, "TENSORFLOW=python names none")
    def test_tensorflows_resolver_in_the_same_job(self):
        """Workers are TensorFlow's own servers that find each other by SlurmClusterResolver; the ps are ours, and at the same addresses. A session that is
        opened when another worker has ended already finds somebody at its address."""
        (self.dir / "counter.py").write_text(TF_COUNTER)
        out, err = self.srun("-N2", "-n4", BIN, "launch", "--ps", "1", "--port-base", "8888", "--log-dir=", "--", PYTHON, "counter.py", timeout=400)
        self.assertEqual(max(int(n) for n in re.findall(r"counter (\d+)", out)), 30, out + err)

    @unittest.skipUnless((EXAMPLES / "linear_regression").exists(), "the examples are not built")
    def test_all_of_it_in_c(self):
        """A training program in C on both nodes, TF_CONFIG is all that it is told."""
        out, err = self.srun("-N2", "-n4", BIN, "launch", "--ps", "1", "--log-dir=", "--", str(EXAMPLES / "linear_regression"), "--steps=200")
        line = re.search(r"^worker/0 \| y = (\S+) x \+ (\S+)$", out, re.M)
        self.assertTrue(line, out + err)
        for found, drawn in zip(line.groups(), (3, 2)):  # three workers race on noisy points: near, never exact
            self.assertAlmostEqual(float(found), drawn, delta=0.1)

    @unittest.skipUnless(COUNTER.exists() and (EXAMPLES / "trainer").exists(), "not built")
    def test_counter_and_trainer_in_c_on_two_nodes_of_four(self):
        for order in ORDERS:
            with self.subTest(order):
                counter, trainer = self.eight(order, f"{COUNTER} --steps=50", f"{EXAMPLES}/trainer --quiet --steps=300")
                self.assertEqual(counter.count("2 ps counted to 300 by 6 workers"), 6, counter)
                self.assertEqual(len(re.findall(r"worker/\d \| worker/\d: loss \S", trainer)), 6, trainer)

    @unittest.skipUnless(PYTHON and COUNTER.exists(), "TENSORFLOW=python names none, or not built")
    def test_tensorflow_and_c_workers_in_one_job(self):
        """One TensorFlow worker among five in C, on the same counters; it asks SlurmClusterResolver where everybody is."""
        log, = self.eight("first", f"sh -c 'test {{task_index}} = 4 && exec {PYTHON} {TFJOB} --resolver counter 20; exec {COUNTER} --steps=20'", seconds=400)
        self.assertEqual(log.count("2 ps counted to 120 by 6 workers"), 6, log)

    @unittest.skipUnless(PYTHON and SLOW, "slow: make test-all")
    def test_tensorflow_workers_on_two_nodes_of_four(self):
        """Six TensorFlow workers on two ps of ours. SlurmClusterResolver knows only one order: the ps are the first tasks."""
        for order in ORDERS:
            with self.subTest(order):
                resolver = "--resolver" if order == "first" else ""
                counter, trainer = self.eight(order, f"{PYTHON} {TFJOB} {resolver} counter 20", f"{PYTHON} {TFJOB} {resolver} trainer 400", seconds=900)
                self.assertEqual(counter.count("2 ps counted to 120 by 6 workers"), 6, counter)
                self.assertEqual(self.lines(trainer, r"^worker/\d \| "), 6, trainer)


if __name__ == "__main__":
    unittest.main()
