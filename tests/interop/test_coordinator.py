"""ParameterServerStrategy with its coordinator: TensorFlow is coordinator, the ps and the workers are ours or its own (tensorflow.eager.EagerService)."""
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from clusters import free_ports

HERE = pathlib.Path(__file__).resolve().parent


def coordinate(cluster, out, kind, n_ps, steps=20, worker="tf"):
    c = cluster(ps=n_ps, workers=1, ps_kind=kind, worker_kind=worker, start=False)
    c.spec["chief"] = [f"127.0.0.1:{free_ports(1)[0]}"]  # the tasks share this dictionary
    c.start()
    done = subprocess.run([sys.executable, str(HERE / "coordinator.py"), json.dumps(c.spec), str(out), str(steps)], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-4000:] + c.task("ps").log()[-2000:]
    return json.loads(out.read_text())


@pytest.mark.parametrize("n_ps", [1, 2])
def test_custom_loop(cluster, tmp_path, n_ps):
    kinds = (("trn", "tf"), ("trn", "trn"), ("tf", "trn"), ("tf", "tf"))
    *ours, theirs = (coordinate(cluster, tmp_path / f"{ps}_{worker}.json", ps, n_ps, worker=worker) for ps, worker in kinds)
    for kind, got in zip(kinds, ours):
        assert got["count"] == 20 and got["restored"][1] == 20, kind
        for key in ("loss", "w", "table"):
            np.testing.assert_allclose(got[key], theirs[key], rtol=1e-6, err_msg=f"{kind} {key}")
        np.testing.assert_array_equal(got["restored"][0], got["table"])
