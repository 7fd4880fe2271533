"""Programs of coordinated.py on clusters of either kind of ps."""
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest
from clusters import Cluster, free_ports

HERE = pathlib.Path(__file__).resolve().parent


def made(cluster, kind, n_ps, workers=1, here=(), worker="tf"):
    """A cluster; the tasks `here` are part of the coordinator's process."""
    c = cluster(ps=n_ps, workers=workers, ps_kind=kind, worker_kind=worker, start=False)
    c.spec["chief"] = [f"127.0.0.1:{free_ports(1)[0]}"]  # the tasks share this dictionary
    c.tasks = [t for t in c.tasks if f"{t.job}/{t.index}" not in here]
    return c.start()


def program(c, out, mode, *args, here=()):
    return subprocess.Popen([sys.executable, str(HERE / "coordinated.py"), json.dumps(c.spec), str(out), mode, *map(str, args)], stderr=subprocess.PIPE, text=True,
                            env={**os.environ, "TASKS_HERE": ",".join(here)})


def ended(c, p, out, seconds=300):
    try:
        err = p.communicate(timeout=seconds)[1]
    finally:
        p.kill()
        p.wait()
    assert p.returncode == 0, err[-4000:] + "".join(t.log()[-1500:] for t in c.tasks if t.kind == "trn")
    return json.loads(out.read_text())


def results(tmp_path_factory, n_ps, modes, kinds=(("trn", "tf"), ("tf", "tf"))):
    """What the programs give with each (kind of ps, kind of worker), in one process each, which has TensorFlow's tasks too."""
    got = []
    for kind, worker in kinds:
        here = ["worker/0"] * (worker == "tf") + [f"ps/{i}" for i in range(n_ps) if kind == "tf"]
        folder = tmp_path_factory.mktemp(f"{kind}_{worker}")
        c = made(lambda **k: Cluster(folder, k["ps"], k["workers"], 0, k["ps_kind"], k["worker_kind"], ()), kind, n_ps, here=here, worker=worker)
        try:
            got.append(ended(c, program(c, folder / "out.json", modes, folder, here=here), folder / "out.json"))
        finally:
            c.stop()
    return got


def same(a, b, **tolerance):
    for key in a:
        if isinstance(a[key], dict):
            same(a[key], b[key], **tolerance)
        elif key in ("weights", "early", "again"):
            for x, y in zip(a[key], b[key], strict=True):
                np.testing.assert_allclose(x, y, err_msg=key, **tolerance)
        elif isinstance(a[key], list) and a[key] and isinstance(a[key][0], str):
            assert a[key] == b[key], key
        else:
            np.testing.assert_allclose(a[key], b[key], err_msg=key, **tolerance)


def marked(folder, p, at_least, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end and p.poll() is None:
        text = (folder / "mark").read_text() if (folder / "mark").exists() else ""
        if text and int(text) >= at_least:
            return
        time.sleep(0.1)
    pytest.fail(f"step {at_least} was not reached: {p.stderr.read()[-3000:] if p.poll() is not None else 'time is up'}")
