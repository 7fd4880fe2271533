#!/usr/bin/env python3
"""trainera launch in a real HTCondor (condor_pool.py): vanilla jobs, submitted with the file of `trainera init condor`, that meet in a shared folder;
and, in the same Debian, what `trainera init ssh` and `trainera init k8s` write.

    TRAINERA_BIN=build/trainera tests/condor/test_condor.py [-v] [name…]     TENSORFLOW=python: a Python that has TensorFlow; without it that test is skipped
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from condor_pool import CondorPool, missing  # noqa: E402
from test_k8s import expand, parse  # noqa: E402

BUILD = pathlib.Path(os.environ.get("TRAINERA_BIN") or pathlib.Path(__file__).resolve().parents[2] / "build" / "trainera").resolve().parent
PYTHON = os.environ.get("TENSORFLOW")
OPT = "/opt/trainera"  # where the pool sees BUILD
COUNTER, TRAINER = f"{OPT}/tests/interop/c/jobcounter", f"{OPT}/examples/trainer"
LIMIT = 300  # seconds for a job that has all the slots it needs

TF_COUNTER = """
import json, os
import tensorflow as tf
v1 = tf.compat.v1
v1.disable_v2_behavior()
config = json.loads(os.environ["TF_CONFIG"])
index, workers = config["task"]["index"], len(config["cluster"]["worker"])
server = tf.distribute.Server(tf.train.ClusterSpec(config["cluster"]), job_name="worker", task_index=index)
with tf.device("/job:ps/task:0"):
    counter = v1.get_variable("counter", [], tf.int64, initializer=v1.zeros_initializer())
    add, now = counter.assign_add(1), counter.read_value() if hasattr(counter, "read_value") else counter + 0
init = v1.train.SessionManager.__init__
v1.train.SessionManager.__init__ = lambda self, *a, **k: init(self, *a, **{**k, "recovery_wait_secs": 1})
only = v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"])
with v1.train.MonitoredTrainingSession(master=server.target, is_chief=index == 0, config=only) as s:
    for _ in range(10):
        value = s.run(add)
print(f"TensorFlow {tf.__version__} worker {index} of {workers}: counter {value}", flush=True)
"""


def mounts():
    """What the pool sees of this machine: the build and, where it is, TensorFlow's Python with the packages that it has beside Debian's."""
    seen = {OPT: BUILD}
    if PYTHON:
        base, prefix, version = subprocess.run([PYTHON, "-c", "import sys; print(sys.base_prefix, sys.prefix, '%d.%d' % sys.version_info[:2])"], capture_output=True, text=True,
                                               check=True).stdout.split()
        seen[prefix] = prefix
        seen |= {p: p for p in ([base] if base != "/usr" else [f"/usr/bin/python{version}", f"/usr/lib/python{version}"])}
    return seen


class Pool(unittest.TestCase):
    HOSTS = ["10.78.0.3 alpha", "10.78.0.4 beta"]

    @classmethod
    def setUpClass(cls):
        cls.pool = cls.enterClassContext(CondorPool(slots=4, mounts=mounts(), hosts=cls.HOSTS))

    def setUp(self):
        name = self.id().rsplit(".")[-1]
        self.here = pathlib.Path("/home/peer") / name  # as the pool sees it
        self.dir = self.pool.home() / name
        self.sh(f"mkdir {self.here}")

    def sh(self, command, code=0, timeout=LIMIT):
        r = self.pool.run("sh", "-c", command, timeout=timeout)
        self.assertEqual(r.returncode, code, f"{command}\n{r.stdout}{r.stderr}")
        return r.stdout

    def tell(self, what):
        """Beside that it passed; tools/run-tests prints these lines."""
        print(f"· {self.id().split('.', 1)[1]}: {what}", file=sys.stderr, flush=True)

    def wait(self, condition, what, limit=LIMIT):
        """For a condition; what: a function that says what to see when it does not come."""
        end = time.monotonic() + limit
        while not condition():
            self.assertLess(time.monotonic(), end, what())
            time.sleep(0.3)

    def nothing_left(self):
        """Nothing of the user runs any more; starters of HTCondor and sshd's sessions take a moment to go."""
        self.wait(lambda: not self.pool.processes(), lambda: str(self.pool.processes()), 60)


class Condor(Pool):
    def init(self, *flags, command):
        return self.sh(f"cd {self.here}; trainera init condor {shlex.join(flags)} -- {command}")

    def submit(self, text):
        """Returns the job's number and how many tasks it has."""
        (self.dir / "job.sub").write_text(text)
        first, last = re.match(r"(\d+\.\d+) - (\d+\.\d+)", self.sh(f"cd {self.here}; condor_submit -terse job.sub")).groups()
        return int(first.split(".")[0]), int(last.split(".")[1]) + 1

    def output(self, job, what="*"):
        return "".join(f"{p.name}: {line}\n" for p in sorted(self.dir.glob(f"trainera.{job}.{what}")) if p.suffix != ".log" for line in p.read_text().splitlines())

    def ended(self, job, tasks):
        """Waits until the whole job has left the queue; what HTCondor's history says about each task."""
        self.wait(lambda: not self.sh(f"condor_q {job} -af ProcId"), lambda: self.sh(f"condor_q -nobatch; condor_q -better {job} | tail -30") + self.output(job))
        self.wait(lambda: len(self.sh(f"condor_history {job} -af ProcId").split()) == tasks, lambda: self.sh(f"condor_history {job}"), 60)
        return sorted(tuple(row.split()) for row in self.sh(f"condor_history {job} -af ProcId JobStatus ExitBySignal ExitCode").splitlines())

    def completed(self, job, tasks):
        """It ended by itself, every task with 0, and nothing of it is left."""
        self.assertEqual(self.ended(job, tasks), [(str(i), "4", "false", "0") for i in range(tasks)], self.output(job))
        self.nothing_left()
        self.tell(f"condor_history {job}: {tasks} tasks, each JobStatus 4 (completed), ExitCode 0")

    def test_counter_in_c(self):
        """One ps and three workers, all in C, as `trainera init condor` writes it, in the submit folder."""
        job, tasks = self.submit(self.init("--workers", "3", command=f"{COUNTER} --steps=200"))
        self.assertEqual(tasks, 4)
        self.completed(job, tasks)
        for i in (1, 2, 3):
            self.assertIn("1 ps counted to 600 by 3 workers", self.output(job, f"{i}.out"))
        self.assertIn("all 3 programs of the job have ended: ending", self.output(job, "0.err"))
        self.assertEqual([p.name for p in (self.dir / "meet").iterdir()], [])

    def test_trainer_in_c(self):
        """A training program on every slot of both hosts, asynchronous on two ps, with words in its command that want quotes in a submit file."""
        job, tasks = self.submit(self.init("--ps", "2", "--workers", "6", "--dir", str(self.here / "meet two"),
                                           command=shlex.join(["sh", "-c", """echo "it's" {job_name} '{task_index}' on $(uname) && exec "$0" "$@" """, TRAINER, "--quiet", "--steps=600"])))
        self.completed(job, tasks)
        for i in range(2, 8):
            self.assertIn(f"it's worker {i - 2} on Linux", self.output(job, f"{i}.out"))
        accuracies = [float(a) for a in re.findall(r"accuracy of the last batch (\d\S+)", self.output(job, "*.out"))]
        self.assertGreater(max(accuracies), 0.6, self.output(job))  # one that comes late may find nothing to do
        hosts = set(re.findall(r"10\.78\.0\.\d+", re.search(r"cluster (\{.*\})", self.output(job, "0.err"))[1]))
        self.assertEqual(hosts, {"10.78.0.1", "10.78.0.2"})

    def test_two_jobs_in_one_folder(self):
        """Two jobs at once meet in the same folder, and work at the same time; nobody is counted with the others."""
        jobs = []
        for n in (300, 500):
            both = f"touch {self.here}/is.{n}.{{task_index}}; while [ $(ls {self.here}/is.* | wc -l) -lt 6 ]; do sleep 0.1; done; exec {COUNTER} --steps={n}"
            jobs.append(self.submit(self.init("--workers", "3", "--dir", str(self.here / "shared"), command=shlex.join(["sh", "-c", both]))))
        for job, tasks in jobs:
            self.ended(job, tasks)
        for (job, tasks), n in zip(jobs, (900, 1500)):
            self.completed(job, tasks)
            self.assertEqual(self.output(job, "*.out").count(f"1 ps counted to {n} by 3 workers"), 3, self.output(job))

    def test_removed_and_run_again(self):
        """condor_rm in the middle of the work: nothing is left, and the same file is submitted again into the same folder."""
        text = self.init("--workers", "3", command=f"{COUNTER} --steps=1000000000")
        job, tasks = self.submit(text)
        # All met, and the workers count.
        self.wait(lambda: sum("jobcounter" in args and "launch" not in args for args in self.pool.processes().values()) == 3, lambda: self.output(job) + str(self.pool.processes()))
        time.sleep(1)
        begin = time.monotonic()
        self.sh(f"condor_rm {job}")
        self.nothing_left()
        self.tell(f"condor_rm: all gone after {time.monotonic() - begin:.1f} s")
        self.assertEqual([status for _, status, *_ in self.ended(job, tasks)], ["3"] * tasks)  # removed
        job, tasks = self.submit(text.replace("--steps=1000000000", "--steps=100").replace("condor-$(ClusterId)", f"condor-{job}"))  # even as the same job
        self.completed(job, tasks)
        self.assertEqual(self.output(job, "*.out").count("1 ps counted to 300 by 3 workers"), 3, self.output(job))

    def test_a_failed_worker_ends_the_job(self):
        job, tasks = self.submit(self.init("--workers", "3", command=shlex.join(["sh", "-c", "test {task_index} = 1 && exit 9; exec sleep 600"])))
        codes = [code for *_, code in self.ended(job, tasks)]
        self.assertEqual(codes[2], "9", self.output(job))
        self.assertNotIn("0", codes, self.output(job))
        self.nothing_left()
        self.assertIn("worker/1 failed with exit code 9", self.output(job, "*.err"))

    @unittest.skipUnless(PYTHON, "TENSORFLOW=python names none")
    def test_tensorflow_workers(self):
        """Three TensorFlow workers, each with TensorFlow's own server, on one ps of ours."""
        (self.dir / "counter.py").write_text(TF_COUNTER)
        job, tasks = self.submit(self.init("--workers", "3", command=f"{PYTHON} {self.here}/counter.py"))
        self.completed(job, tasks)
        counts = re.findall(r"TensorFlow \S+ worker (\d) of 3: counter (\d+)", self.output(job, "*.out"))
        self.assertEqual(sorted(i for i, _ in counts), ["0", "1", "2"])
        self.assertEqual(max(int(n) for _, n in counts), 30)


class Ssh(Pool):
    """The script of `trainera init ssh`, with a real sshd on each of two "machines"."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pool.machine("alpha", "10.78.0.3", "/usr/sbin/sshd", "-D")
        cls.pool.machine("beta", "10.78.0.4", "/usr/sbin/sshd", "-D")
        r = cls.pool.run("sh", "-c", "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519 && cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys && printf 'StrictHostKeyChecking no\nLogLevel ERROR\n' >~/.ssh/config"
                         " && for i in 1 2 3 4 5 6 7 8 9; do ssh alpha hostname && ssh beta trainera version && exit; sleep 1; done; exit 1")
        assert r.returncode == 0, r.stdout + r.stderr

    def write(self, *command):
        """Returns the command that runs the script."""
        (self.dir / "job.sh").write_text(self.sh(f"trainera init ssh --hosts alpha,beta --ps 2 --workers 3 -- {shlex.join(command)}"))
        return f"cd {self.here}; exec bash job.sh"

    def test_counter(self):
        out = self.sh(self.write(COUNTER, "--steps=100"))
        self.assertEqual(out.count("2 ps counted to 300 by 3 workers"), 3, out)
        self.nothing_left()

    def test_trainer_with_quotes(self):
        out = self.sh(self.write("sh", "-c", """echo "it's $(uname)" {job_name}/{task_index} of {worker_hosts}; exec "$0" "$@" """, TRAINER, "--quiet", "--steps=600"))
        for i in range(3):
            self.assertIn(f"it's Linux worker/{i} of alpha:2322,beta:2322,alpha:2323", out)
        self.assertEqual(len(re.findall(r"accuracy of the last batch [01]\.\d+", out)), 3, out)
        self.nothing_left()

    def test_a_failed_worker_ends_the_job(self):
        out = self.sh(self.write("sh", "-c", "test {task_index} = 1 && exit 9; exec sleep 600"), code=9)
        self.assertIn("worker/1 ended with exit code 9", re.sub(r"\x1b\[\d*m", "", out))
        self.nothing_left()

    def test_one_that_cannot_start_ends_the_job(self):
        """The others would wait for it; the script does not."""
        serve = "trainera serve --ps_hosts=beta:2222 --job_name=ps"
        busy = subprocess.Popen(self.pool.enter("ssh", "beta", serve), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(busy.wait)
        self.addCleanup(lambda: self.sh("kill " + " ".join(str(pid) for pid, args in self.pool.processes().items() if args == serve)))
        self.wait(lambda: self.pool.run("ssh", "beta", "trainera", "status", "beta:2222").returncode == 0, lambda: str(self.pool.processes()), 60)
        out = self.sh(self.write(COUNTER, "--steps=100"), code=1)
        self.assertIn("port 2222 of ps/1 is taken", out)

    def test_ended_by_a_signal(self):
        for sig in ("INT", "TERM"):
            with self.subTest(sig):
                p = subprocess.Popen(self.pool.enter("sh", "-c", self.write(COUNTER, "--steps=1000000000")), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.wait(lambda: sum("jobcounter" in args and "launch" not in args for args in self.pool.processes().values()) == 3, lambda: str(self.pool.processes()))
                script = next(pid for pid, args in self.pool.processes().items() if args == "bash job.sh")
                begin = time.monotonic()
                self.sh(f"kill -{sig} {script}")
                p.wait(60)
                self.nothing_left()
                self.tell(f"SIG{sig} to the script: all gone after {time.monotonic() - begin:.1f} s")


class Pods(Pool):
    """What the containers of `trainera init k8s` run, each on a "machine" with the name that its StatefulSet gives it. No Kubernetes; the manifest itself is judged by
    tests/cli/test_k8s.py."""
    NAMES = [f"trainera-{job}-{i}" for job in ("ps", "worker") for i in range(2)]
    ADDRESSES = {name: f"10.78.0.{i + 10}" for i, name in enumerate(NAMES)}
    HOSTS = [f"{address} {name}.trainera {name}" for name, address in ADDRESSES.items()]

    def test_the_containers_make_a_job(self):
        service, config, *sets = parse(self.sh(f"trainera init k8s --ps 2 --workers 2 -- {COUNTER} --steps=100"))
        container = sets[0]["spec"]["template"]["spec"]["containers"][0]
        mount = container["volumeMounts"][0]["mountPath"]
        self.pool.run("mkdir", "-p", mount, user="root")
        for name, text in config["data"].items():
            self.pool.run("sh", "-c", 'printf %s "$2" >"$1"', "sh", f"{mount}/{name}", text, user="root")
        for s in reversed(sets):  # in any order
            for i in range(s["spec"]["replicas"]):
                pod, c = f"{s['metadata']['name']}-{i}", s["spec"]["template"]["spec"]["containers"][0]
                log = self.here / f"{pod}.log"
                self.pool.machine(pod, self.ADDRESSES[pod], "env", f"HOSTNAME={pod}", f"PATH={OPT}:/usr/bin:/bin", "sh", "-c", f'exec "$@" >{log} 2>&1', "sh", *c["command"], expand(c["args"][0], {}))
        logs = lambda: "".join(f"{p.name}: {p.read_text()}" for p in sorted(self.dir.glob("*.log")))  # noqa: E731
        # The probes, as a kubelet asks: by the pod's address.
        for pod in ("trainera-ps-0", "trainera-ps-1"):
            for probe in (container["readinessProbe"], container["livenessProbe"]):
                url = f"http://{self.ADDRESSES[pod]}:{probe['httpGet']['port']}{probe['httpGet']['path']}"
                self.wait(lambda: self.pool.run("python3", "-c", f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=5).status)").stdout == "200\n", logs, 60)
        self.wait(lambda: logs().count("2 ps counted to 200 by 2 workers") == 2, logs)
        # Both workers have ended well and idle; the ps serve on, for a StatefulSet would start them again.
        self.wait(lambda: self.pool.run("pgrep", "-xc", "sleep", user="root").stdout == "2\n", logs, 60)
        self.assertEqual(self.pool.run("pgrep", "-fc", "^trainera serve", user="root").stdout, "2\n", logs())


if __name__ == "__main__":
    if missing():
        sys.exit(f"test_condor.py: {missing()}")
    unittest.main()
