"""What a TensorFlow worker of the tests' jobs runs; the ps are Trainera's, other workers may be, too.

    tfjob.py [--resolver] counter STEPS    like tests/interop/c/jobcounter: a counter on every ps, which has to come to just what all workers together count
    tfjob.py [--resolver] trainer STEPS    a line through points, variables spread over the ps, until the global step is STEPS

Who takes part is told by TF_CONFIG; --resolver asks TensorFlow's SlurmClusterResolver, which has to say the same.
"""
import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
v1.disable_v2_behavior()
v1.enable_resource_variables()
v1.logging.set_verbosity(v1.logging.ERROR)

config = json.loads(os.environ["TF_CONFIG"])
n_ps, n_workers, index = len(config["cluster"]["ps"]), len(config["cluster"]["worker"]), config["task"]["index"]
mode, steps = sys.argv[-2], int(sys.argv[-1])
cluster = tf.train.ClusterSpec(config["cluster"])
if "--resolver" in sys.argv:
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver({"ps": n_ps, "worker": n_workers}, gpus_per_node=8, gpus_per_task=1, auto_set_gpu=False)
    cluster = resolver.cluster_spec()
    assert cluster.as_dict() == config["cluster"], (cluster.as_dict(), config["cluster"])
    assert resolver.get_task_info() == ("worker", index), (resolver.get_task_info(), config["task"])
server = tf.distribute.Server(cluster, job_name="worker", task_index=index)

# Looks every second, not every thirty, whether the chief has initialised.
init = v1.train.SessionManager.__init__
v1.train.SessionManager.__init__ = lambda self, *a, **k: init(self, *a, **{**k, "recovery_wait_secs": 1})


def session(**kw):
    return v1.train.MonitoredTrainingSession(master=server.target, is_chief=index == 0, log_step_count_steps=None,
                                             config=v1.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{index}"]), **kw)


if mode == "counter":
    counters, adds = [], []
    for i in range(n_ps):
        with tf.device(f"/job:ps/task:{i}"):
            v = v1.get_variable(f"counter{i}", [], tf.int64, initializer=v1.zeros_initializer())
            counters.append(v.read_value())
            adds.append(v.assign_add(1, read_value=False))
    goal = steps * n_workers
    with session() as s:
        for _ in range(steps):
            s.run(adds)
        end = time.monotonic() + 300
        while min(got := s.run(counters)) < goal and time.monotonic() < end:
            time.sleep(0.1)
    assert got == [goal] * n_ps, f"{got} instead of {goal}"
    print(f"{n_ps} ps counted to {goal} by {n_workers} workers", flush=True)
else:
    rng = np.random.default_rng(index)
    with v1.device(v1.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{index}")):
        x, y = v1.placeholder(tf.float32, [None]), v1.placeholder(tf.float32, [None])
        a, b = (v1.get_variable(n, [], initializer=v1.zeros_initializer()) for n in "ab")
        loss = tf.reduce_mean(tf.square(a * x + b - y))
        step = v1.train.get_or_create_global_step()
        train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=step)
    with session() as s:
        while s.run(step) < steps:
            points = rng.uniform(-1, 1, 64)
            s.run(train, {x: points, y: 3 * points + 2})
        found = s.run([a, b])
    print(f"y = {found[0]:.3f} x + {found[1]:.3f}", flush=True)
