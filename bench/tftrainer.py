#!/usr/bin/env python
"""Counts on /job:ps/task:0 from a TensorFlow program that is /job:worker/task:0 itself, as TF1 trainers are: the peer of counterbench --as-worker.
One line of JSON on stdout."""
import argparse
import json
import os
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
ap = argparse.ArgumentParser()
ap.add_argument("--as-worker", required=True)
ap.add_argument("--clients", type=int, default=1)
ap.add_argument("--seconds", type=float, default=3)
ap.add_argument("--warm", type=float, default=0.5)
a = ap.parse_args()

import tensorflow as tf  # noqa: E402

tf1 = tf.compat.v1
tf1.disable_eager_execution()
server = tf1.train.Server(tf.train.ClusterSpec(json.loads(a.as_worker)), job_name="worker", task_index=0)
with tf.device("/job:ps/task:0"):
    v = tf1.get_variable("counter", initializer=tf.zeros([], tf.int64), use_resource=True)
    with tf.control_dependencies([v.assign_add(1, read_value=False)]):
        count = v.read_value()
sessions = [tf1.Session(server.target) for _ in range(a.clients)]
sessions[0].run(v.initializer)
took = [[] for _ in sessions]
stop = threading.Event()


def work(session, times):
    step = session.make_callable(count)
    while not stop.is_set():
        t = time.time()
        step()
        times.append(time.time() - t)


threads = [threading.Thread(target=work, args=x) for x in zip(sessions, took)]
for t in threads:
    t.start()
time.sleep(a.warm)
warm, t0, c0 = sum(map(len, took)), time.time(), time.process_time()
time.sleep(a.seconds)
steps, t1, c1 = sum(map(len, took)) - warm, time.time(), time.process_time()
stop.set()
for t in threads:
    t.join()
times = sorted(sum(took, []))
total = int(sessions[0].run(v.read_value()))
assert total == len(times), (total, len(times))
print(json.dumps(dict(clients=a.clients, steps=total, seconds=t1 - t0, steps_per_s=steps / (t1 - t0), p50_ms=times[len(times) // 2] * 1e3, cpu_s=c1 - c0)), flush=True)
os._exit(0)  # a TensorFlow server never ends by itself
