#!/usr/bin/env python
"""coordinator.py [--turns N] [--secs S] [--cases counter,tutorial,mlp]: TensorFlow 2's ClusterCoordinator with a Trainera ps and with a TensorFlow ps.

For each case two clusters of a coordinator, one worker (both TensorFlow) and one ps run side by side and have their turns while the other rests; a turn schedules
closures for S seconds, joining every 50. Steps/s and the ps's CPU time per step (/proc) of each turn go to stderr, the table for RESULTS.md to stdout.
The parent never imports TensorFlow. TRAINERA_BIN names the binary, build/trainera otherwise."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from psbench import free_ports

HERE = pathlib.Path(__file__).resolve().parent
BIN = os.environ.get("TRAINERA_BIN", str(HERE.parent / "build" / "trainera"))
TICKS = os.sysconf("SC_CLK_TCK")
WHAT = {"counter": "a counter", "tutorial": "embedding 10,000 × 64, RMSprop, accuracy", "mlp": "784-500-10, Adam, batch 100"}


# ---- the coordinator's process -------------------------------------------------------------------------------------------


def program(spec, case):
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec), rpc_layer="grpc", task_type="chief", task_id=0)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def parts(v):
        return list(v.variables) if hasattr(v, "variables") else [v]

    if case == "counter":
        with strategy.scope():
            n = tf.Variable(0, dtype=tf.int64)

        @tf.function
        def step():
            return n.assign_add(1)
    elif case == "tutorial":
        with strategy.scope():
            table, w = tf.Variable(tf.random.stateless_uniform([10000, 64], [1, 2])), tf.Variable(tf.random.stateless_uniform([64, 1], [3, 4]))
            optimizer, accuracy = tf.keras.optimizers.legacy.RMSprop(0.01), tf.keras.metrics.BinaryAccuracy()

        @tf.function
        def step():
            def replica():
                ids = tf.random.uniform([64], 0, 10000, tf.int32)
                label = tf.cast(ids[:, None] % 2, tf.float32)
                with tf.GradientTape() as tape:
                    z = tf.nn.embedding_lookup(table, ids) @ w
                    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, z))
                variables = parts(table) + parts(w)
                optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
                accuracy.update_state(label, tf.sigmoid(z))
                return loss

            return strategy.run(replica)
    else:
        with strategy.scope():
            v = [tf.Variable(tf.random.stateless_normal(shape, [i, 5], stddev=0.05)) for i, shape in enumerate(([784, 500], [500], [500, 10], [10]))]
            optimizer = tf.keras.optimizers.legacy.Adam(0.001)

        @tf.function
        def step():
            def replica():
                x, y = tf.random.uniform([100, 784]), tf.random.uniform([100], 0, 10, tf.int32)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.nn.relu(x @ v[0] + v[1]) @ v[2] + v[3]))
                optimizer.apply_gradients(zip(tape.gradient(loss, v), v))
                return loss

            return strategy.run(replica)

    def run(seconds):
        steps, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            for _ in range(50):
                coordinator.schedule(step)
            coordinator.join()
            steps += 50
        return steps, time.monotonic() - began

    run(2)
    print("ready", flush=True)
    for line in sys.stdin:
        print(*run(float(line)), flush=True)
    os._exit(0)


# ---- the parent ----------------------------------------------------------------------------------------------------------


class Side:
    def __init__(self, kind, case):
        self.kind, ports = kind, free_ports(3)
        self.spec = {job: [f"127.0.0.1:{port}"] for job, port in zip(("chief", "worker", "ps"), ports)}
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "GRPC_FAIL_FAST": "use_caller"}
        server = "import json,sys,tensorflow as tf; tf.distribute.Server(tf.train.ClusterSpec(json.loads(sys.argv[1])),sys.argv[2],0).join()"
        python = [sys.executable, "-c", server, json.dumps(self.spec)]
        ours = [BIN, "serve", "--cluster_spec=" + json.dumps(self.spec), "--job_name=ps", "--task_index=0"]
        self.procs = [subprocess.Popen(cmd, env=env, stderr=subprocess.DEVNULL) for cmd in (ours if kind == "Trainera" else [*python, "ps"], [*python, "worker"])]
        self.client = subprocess.Popen([sys.executable, __file__, "--program", json.dumps(self.spec), case], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                       stderr=subprocess.DEVNULL)
        self.procs.append(self.client)

    def heard(self):
        line = self.client.stdout.readline().split()
        if not line:
            raise RuntimeError(f"the coordinator with {self.kind}'s ps has ended")
        return line

    def cpu(self):
        f = pathlib.Path(f"/proc/{self.procs[0].pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / TICKS

    def turn(self, seconds):
        """(steps/s, µs of the ps's CPU per step)"""
        before = self.cpu()
        print(seconds, file=self.client.stdin, flush=True)
        steps, wall = (float(x) for x in self.heard())
        return steps / wall, (self.cpu() - before) / steps * 1e6

    def end(self):
        for p in self.procs:
            p.kill()
            p.wait()


def measure(case, turns, seconds):
    sides = []
    try:
        for kind in ("TensorFlow", "Trainera"):
            sides.append(Side(kind, case))
        for s in sides:
            s.heard()
        got = [[s.turn(seconds) for s in (sides if t % 2 == 0 else sides[::-1])][:: 1 if t % 2 == 0 else -1] for t in range(turns)]
    finally:
        for s in sides:
            s.end()
    for t in got:
        print(case, *(f"{x:,.0f} steps/s {cpu:,.0f} µs" for x, cpu in t), file=sys.stderr, flush=True)
    median = [[statistics.median(t[i][k] for t in got) for k in (0, 1)] for i in (0, 1)]
    ratios = sorted(t[1][0] / t[0][0] for t in got)
    cpu = sorted(t[1][1] / t[0][1] for t in got)
    print(f"| {case}: {WHAT[case]} | {median[0][0]:,.0f} | {median[1][0]:,.0f} | **{statistics.median(ratios):.2f}×** ({ratios[0]:.2f}–{ratios[-1]:.2f}) "
          f"| {median[1][1]:,.0f} / {median[0][1]:,.0f} | {statistics.median(cpu):.2f} ({cpu[0]:.2f}–{cpu[-1]:.2f}) |", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--turns", type=int, default=5)
    ap.add_argument("--secs", type=float, default=4)
    ap.add_argument("--cases", default="counter,tutorial,mlp")
    ap.add_argument("--program", nargs=2, help=argparse.SUPPRESS)
    a = ap.parse_args()
    if a.program:
        program(json.loads(a.program[0]), a.program[1])
        return
    print("| case | TensorFlow ps steps/s | Trainera ps steps/s | ratio (turns) | CPU µs per step on ps, Trainera / TensorFlow | its ratio |\n|---|---|---|---|---|---|", flush=True)
    for case in a.cases.split(","):
        measure(case, a.turns, a.secs)


if __name__ == "__main__":
    main()
