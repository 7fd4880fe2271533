"""trainera trace while a job runs: every task, steps in step, arrows from sender to receiver."""
import collections
import json
import subprocess
import threading

import tensorflow as tf
from clusters import BIN

tf1 = tf.compat.v1


def test_trace_of_a_job(cluster, tmp_path):
    c = cluster(ps=1, workers=2)
    with tf1.device(tf1.train.replica_device_setter(worker_device="/job:worker/task:0", ps_device="/job:ps", ps_tasks=1)):
        w = tf1.get_variable("w", [20, 20], initializer=tf1.ones_initializer(), use_resource=True)
        train = tf1.train.GradientDescentOptimizer(0.01).minimize(tf.reduce_sum(tf.matmul(w, w)))
    stop = threading.Event()
    with tf1.Session(c.target()) as s:
        s.run(tf1.global_variables_initializer())

        def work():
            while not stop.is_set():
                s.run(train)
        t = threading.Thread(target=work)
        t.start()
        out = tmp_path / "trace.json"
        try:
            p = subprocess.run([BIN, "trace", c.target(), "--steps", "5", "-o", str(out), "--json"], capture_output=True, text=True, timeout=60)
        finally:
            stop.set()
            t.join()
        assert p.returncode == 0, p.stderr
        said = {t["name"]: t for t in json.loads(p.stdout)["tasks"]}
        assert said["worker/0"]["parts"] == 5 and said["ps/0"]["parts"] >= 5 and said["worker/1"]["parts"] == 0
        assert abs(said["ps/0"]["clock_offset_us"]) < 100e3
    trace = json.loads(out.read_text())
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert sorted(n.split()[0] for n in names.values()) == ["ps/0", "worker/0", "worker/1"]
    ops = collections.defaultdict(set)
    for e in events:
        if e["ph"] == "X":
            assert e["dur"] >= 0 and e["args"]["node"]
            ops[names[e["pid"]].split()[0]].add(e["name"])
    assert "MatMul" in ops["worker/0"] and "_Send" in ops["ps/0"] and any("GradientDescent" in o for o in ops["ps/0"])
    sent = {e["id"]: e for e in events if e["ph"] == "s"}
    came = {e["id"]: e for e in events if e["ph"] == "f"}
    both = sent.keys() & came.keys()
    assert len(both) >= 5
    assert sum(came[k]["ts"] >= sent[k]["ts"] - 1000 for k in both) == len(both)  # clocks are lined up
    # Perfetto wants the spans of a thread to nest
    threads = collections.defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            threads[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for spans in threads.values():
        spans.sort(key=lambda x: (x[0], -x[1]))
        open_ends = []
        for a, b in spans:
            while open_ends and open_ends[-1] <= a + 0.01:
                open_ends.pop()
            assert not open_ends or b <= open_ends[-1] + 0.01
            open_ends.append(b)


def test_trace_without_steps(cluster, tmp_path):
    c = cluster(ps=1, workers=1)
    p = subprocess.run([BIN, "trace", c.target(), "--timeout", "1", "-o", str(tmp_path / "t")], capture_output=True, text=True, timeout=60)
    assert p.returncode == 1 and "ran no step" in p.stderr and not (tmp_path / "t").exists()
