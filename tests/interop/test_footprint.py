"""Small and quick to start: what is promised in figures. The best of a few tries counts, as the machine may be busy."""
import http.client
import json
import os
import pathlib
import subprocess
import time

import pytest

from conftest import BIN, SANITIZED, free_ports

COMPARES = False

pytestmark = pytest.mark.skipif(SANITIZED, reason="sanitizers are neither small nor quick")
MB = 1 << 20


def start(spec, job, index):
    return subprocess.Popen([BIN, "serve", "--cluster_spec=" + json.dumps(spec), f"--job_name={job}", f"--task_index={index}"],
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_healthy(address, seconds=20):
    """Until the task answers a request, not only has its port open."""
    end = time.monotonic() + seconds
    while True:
        try:
            c = http.client.HTTPConnection(address, timeout=5)
            c.request("GET", "/healthz")
            assert c.getresponse().status == 200
            c.close()
            return
        except OSError:
            assert time.monotonic() < end, f"{address} does not answer"
            time.sleep(0.001)


def rss(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def end(procs):
    for p in procs:
        p.terminate()
    for p in procs:
        assert p.wait(20) == 0


def test_idle_ps():
    """Serves within 50 ms of exec, in under 15 MB."""
    took = []
    for _ in range(10):
        address = f"127.0.0.1:{free_ports(1)[0]}"
        begin = time.monotonic()
        p = start({"ps": [address]}, "ps", 0)
        try:
            wait_healthy(address)
            took.append(time.monotonic() - begin)
            size = rss(p.pid)
        finally:
            end([p])
        assert size < 15 * MB, f"{size / MB:.1f} MB"
        if took[-1] < 0.05:
            break
    print(f"served after {min(took) * 1e3:.1f} ms, {size / MB:.1f} MB resident")
    assert min(took) < 0.05


def test_32_workers():
    """All answer within 2 s, in under 500 MB together."""
    took = []
    for _ in range(5):
        addresses = [f"127.0.0.1:{p}" for p in free_ports(33)]
        spec = {"ps": addresses[:1], "worker": addresses[1:]}
        begin = time.monotonic()
        procs = [start(spec, "ps", 0)] + [start(spec, "worker", i) for i in range(32)]
        try:
            for a in addresses:
                wait_healthy(a)
            took.append(time.monotonic() - begin)
            size = sum(rss(p.pid) for p in procs)
        finally:
            end(procs)
        assert size < 500 * MB, f"{size / MB:.0f} MB"
        if took[-1] < 2:
            break
    print(f"32 workers and a ps served after {min(took):.2f} s, {size / MB:.0f} MB resident together")
    assert min(took) < 2
