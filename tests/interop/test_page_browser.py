"""The page in a real browser (Debian's Chromium), while a job runs, under load and with a task down."""
import html
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.request

import pytest
import tensorflow as tf

tf1 = tf.compat.v1
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium here (apt-get install chromium)")


def browse(task, tmp_path, *flags):
    """The page's text after some seconds of its scripts, and what they complained about."""
    cmd = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=6000", "--enable-logging=stderr", *flags]
    p = subprocess.run([*cmd, "--dump-dom", f"http://{task.address}/"], capture_output=True, text=True, timeout=120)
    complaints = [x for x in p.stderr.splitlines() if "CONSOLE" in x]
    body = re.sub(r"<(script|style).*?</\1>", "", p.stdout, flags=re.S)
    return p.stdout, html.unescape(re.sub(r"<[^>]+>", "\n", body)), complaints


def await_status(task, good):
    """The browser's clock runs ahead while it waits for nothing: what it is to see has to be there when it comes."""
    until = time.time() + 60
    while time.time() < until:
        if good(json.load(urllib.request.urlopen(f"http://{task.address}/status.json", timeout=10))):
            return
        time.sleep(0.1)
    raise AssertionError("not within a minute")


def states(d):
    return sorted(t["state"] for t in d["cluster"]["tasks"])


def has_plots(d):
    """Plots show whole seconds: a task that has just started has none."""
    t = d["task"]
    return all(any(x is not None for x in h["mean"]) for h in (t["steps"]["part_history"], t["traffic"]["in_history"], t["process"]["cpu_history"], t["process"]["rss_history"]))


def test_a_running_job(cluster, tmp_path):
    c = cluster(ps=1, workers=2)
    with tf1.device(tf1.train.replica_device_setter(worker_device="/job:worker/task:0", ps_device="/job:ps", ps_tasks=1)):
        step = tf1.train.get_or_create_global_step()
        w = tf1.get_variable("dense/kernel", [30, 30], initializer=tf1.ones_initializer(), use_resource=True)
        loss = tf.reduce_mean(tf.matmul(w, w) ** 2)
        train = tf1.train.GradientDescentOptimizer(1e-6).minimize(loss, global_step=step)
        tf1.summary.scalar("the_loss", loss)
        summary = tf1.summary.merge_all()
    stop = threading.Event()
    with tf1.Session(c.target()) as s:
        s.run(tf1.global_variables_initializer())
        tag = "the_loss"

        def work():
            while not stop.is_set():
                s.run([train, summary])
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        try:
            await_status(c.task("worker"), lambda d: has_plots(d) and states(d) == ["up"] * 3)
            dom, text, complaints = browse(c.task("worker"), tmp_path)
            c.task("worker", 1).kill()
            await_status(c.task("worker"), lambda d: states(d) == ["down", "up", "up"])
            _, down, _ = browse(c.task("worker"), tmp_path, "--window-size=500,900")
        finally:
            stop.set()
            for t in threads:
                t.join()
    assert not complaints, complaints
    for want in "worker/0", "3 of 3 tasks up", "ps/0", "dense/kernel", "[30,30]", "global_step", tag, "whole steps":
        assert want in text, want
    assert dom.count("<path") >= 4 and "<rect" in dom  # plots and the histogram
    assert "1 of 3 tasks down" in down and "worker/1" in down
