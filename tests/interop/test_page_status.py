"""/status.json and the page while a job runs: what it shows is what happens."""
import json
import re
import threading
import time
import urllib.request

import pytest
import tensorflow as tf

tf1 = tf.compat.v1


def status(task, path="/status.json"):
    with urllib.request.urlopen("http://" + task.address + path, timeout=60) as r:
        return r.read().decode()


def ask(task, until, patience=20):
    """Asks until what is there satisfies, or gives the last answer to the assertion that follows."""
    end = time.monotonic() + patience
    while True:
        s = json.loads(status(task))
        if until(s) or time.monotonic() > end:
            return s
        time.sleep(0.3)


def others(s):
    return {t["name"]: t for t in s["cluster"]["tasks"]}


def model(index=0):
    with tf1.device(tf1.train.replica_device_setter(worker_device=f"/job:worker/task:{index}", ps_device="/job:ps", ps_tasks=1)):
        step = tf1.train.get_or_create_global_step()
        w = tf1.get_variable("w", [50, 20], initializer=tf1.zeros_initializer(), use_resource=True)
        loss = tf.reduce_mean((tf.matmul(tf.ones([4, 50]), w) - 3.0) ** 2)
        train = tf1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
        tf1.summary.scalar("loss", loss)
    return train, tf1.summary.merge_all()


@pytest.mark.parametrize("ps_kind", ["trn", "tf"])
def test_a_running_job(cluster, ps_kind):
    c = cluster(ps=1, workers=2, ps_kind=ps_kind)
    w0 = c.task("worker", 0)
    train, summary = model()
    with tf1.Session(w0.target) as s:
        s.run(tf1.global_variables_initializer())
        for _ in range(50):
            s.run([train, summary])
        d = ask(w0, lambda d: all(t["state"] == "up" for t in d["cluster"]["tasks"]) and d["task"]["scalars"])
        me = d["task"]
        assert me["name"] == "worker/0" and me["address"] == w0.address and me["process"]["pid"] == w0.proc.pid
        assert me["steps"]["step_time"]["count"] >= 51 and sum(me["steps"]["step_time"]["buckets"]) == me["steps"]["step_time"]["count"]
        assert me["sessions"]["count"] == 1 and me["sessions"]["list"][0]["steps"] >= 51
        assert [x["tag"] for x in me["scalars"]] == ["loss"] and 0 < me["scalars"][0]["last"] < 9
        assert any(p["peer"] == "ps/0" and p["in_bytes"] > 4000 for p in me["traffic"]["peers"])
        tasks = others(d)
        assert sorted(tasks) == ["ps/0", "worker/0", "worker/1"] and tasks["ps/0"]["round_trip_ms"] > 0
        assert tasks["ps/0"]["kind"] == ("trainera" if ps_kind == "trn" else "other")
        if ps_kind == "trn":
            own = json.loads(status(c.task("ps")))["task"]["variables"]
            for v in own, tasks["ps/0"]["task"]["variables"]:
                assert v["count"] == 2 and v["bytes"] == 50 * 20 * 4 + 8
                by_name = {x["name"]: x for x in v["list"]}
                assert by_name["w"]["shape"] == [50, 20] and by_name["w"]["dtype"] == "float"
                assert by_name["global_step"]["value"] == 50
            peers = json.loads(status(c.task("ps")))["task"]["traffic"]["peers"]
            assert any(p["peer"] == "worker/0" and p["out_bytes"] > 4000 for p in peers)


def test_scalars_of_a_summary_writer(cluster, tmp_path):
    """tf.summary.scalar (TensorBoard's, which is not needed here) writes a tensor with metadata that says that it is one."""
    w0 = cluster(ps=0, workers=1).task("worker", 0)
    meta = tf1.SummaryMetadata(plugin_data=tf1.SummaryMetadata.PluginData(plugin_name="scalars"))
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default(step=1):
        ops = [tf.summary.write("acc", 0.75, metadata=meta), tf.summary.write("no_scalar", 1.0)]
    with tf1.Session(w0.target) as s:
        s.run(writer.init())
        s.run([ops, writer.flush()])
        d = ask(w0, lambda d: d["task"]["scalars"])
        assert [(x["tag"], x["last"]) for x in d["task"]["scalars"]] == [("acc", 0.75)]


def test_who_waits_for_whom(cluster):
    c = cluster(ps=1, workers=1)
    with tf1.device("/job:ps/task:0"):
        q = tf1.FIFOQueue(2, tf.float32, shared_name="tokens", name="q")
        take, put = q.dequeue(), q.enqueue(1.0)
    with tf1.device("/job:worker/task:0"):
        result = tf.identity(take) + 1.0
    with tf1.Session(c.task("worker", 0).target) as s:
        t = threading.Thread(target=lambda: s.run(result))
        t.start()
        ps = ask(c.task("ps"), lambda d: d["task"]["waits"])["task"]
        assert ps["n_waits"] == 1 and ps["waits"][0]["op"] == "QueueDequeueV2" and ps["waits"][0]["key"] == "tokens"
        assert 1 <= ps["waits"][0]["for_s"] < 60
        queue = [r for r in ps["resources"]["list"] if r["name"] == "tokens"][0]
        assert (queue["count"], queue["capacity"], queue["waiting_to_take"]) == (0, 2, 1)
        w = ask(c.task("worker", 0), lambda d: d["task"]["waits"])["task"]["waits"][0]
        assert w["op"] == "_Recv" and w["peer"] == "ps/0" and w["address"] == c.task("ps").address and "Dequeue" in w["key"]
        s.run(put)
        t.join(20)
        assert ask(c.task("worker", 0), lambda d: not d["task"]["waits"])["task"]["n_waits"] == 0


def test_a_peer_that_is_down(cluster):
    c = cluster(ps=1, workers=2)
    c.task("worker", 1).kill()
    d = ask(c.task("worker", 0), lambda d: others(d)["worker/1"]["state"] == "down" and others(d)["ps/0"]["state"] == "up")
    t = others(d)
    assert t["worker/1"]["state"] == "down" and t["worker/1"]["error"] and t["ps/0"]["state"] == "up"

    def create():
        try:
            with tf1.Session(c.task("worker", 0).target, config=tf1.ConfigProto(operation_timeout_in_ms=6000)) as s:
                s.run(tf.constant(1))
        except tf.errors.OpError:
            pass
    thread = threading.Thread(target=create, daemon=True)
    thread.start()
    d = ask(c.task("worker", 0), lambda d: d["task"]["waits"])
    w = d["task"]["waits"][0]
    assert w["op"] == "CreateSession" and w["peer"] == "worker/1" and w["address"] == c.task("worker", 1).address
    c.task("worker", 1).start()
    thread.join(30)


def test_under_full_load(cluster):
    c = cluster(ps=1, workers=1)
    with tf1.device("/job:worker/task:0"):
        a = tf.random.normal([1500, 1500])
        for _ in range(8):
            a = tf.matmul(a, a) * 1e-3
        out = tf.reduce_sum(a)
    with tf1.Session(c.task("worker", 0).target) as s:
        s.run(out)
        stop = threading.Event()

        def load():
            while not stop.is_set():
                s.run(out)
        threads = [threading.Thread(target=load) for _ in range(4)]
        for t in threads:
            t.start()
        slowest = 0
        for _ in range(8):
            begin = time.monotonic()
            assert json.loads(status(c.task("worker", 0)))["task"]["name"] == "worker/0"
            slowest = max(slowest, time.monotonic() - begin)
            time.sleep(0.1)
        stop.set()
        for t in threads:
            t.join()
    assert slowest < 8  # the machine itself may be overloaded


def test_errors_are_remembered(cluster):
    c = cluster(ps=1, workers=1)
    with tf1.Session(c.task("worker", 0).target) as s:
        bad = tf1.debugging.check_numerics(tf.constant(float("nan")), "the sum")
        for _ in range(3):
            with pytest.raises(tf.errors.InvalidArgumentError):
                s.run(bad)
    e = json.loads(status(c.task("worker", 0)))["task"]["errors"]
    assert "the sum" in e[0]["text"] and e[0]["count"] == 3 and e[0]["level"] == "error" and e[0]["ago_s"] < 60


def test_the_page_needs_nothing_else(cluster):
    page = status(cluster(ps=1, workers=1).task("worker"), "/")
    assert page.startswith("<!doctype html>") and "prefers-color-scheme" in page
    assert not re.findall(r"""(?:src|href)=["'](?!data:|/)""", page) and "import(" not in page and "innerHTML" not in page
