"""Clusters for tests with the real TensorFlow: `cluster(ps=1, workers=2, …)` starts tasks of either kind and ends them with the test.

Marks: `asan` is also run on the sanitized build by `make test`; `slow` only by `make test-all`.
"""
import os
import pathlib
import sys

import pytest
from clusters import BIN, Cluster, free_ports  # noqa: F401

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

SANITIZED = "asan" in pathlib.Path(BIN).parent.name


def tensorflow_1():
    """Tests run with several TensorFlows (tools/venv); what only the old one does otherwise asks here."""
    return sys.modules["tensorflow"].__version__.startswith("1.")


def pytest_configure(config):
    config.addinivalue_line("markers", "asan: also run on the sanitized build by `make test`")
    config.addinivalue_line("markers", "slow: takes more than half a minute; run by `make test-all`")


@pytest.fixture
def cluster(tmp_path):
    """cluster(ps=1, workers=1, chief=0, ps_kind="trn", worker_kind="trn", args=(), start=True) -> Cluster"""
    made = []

    def make(ps=1, workers=1, chief=0, ps_kind="trn", worker_kind="trn", args=(), start=True):
        c = Cluster(tmp_path, ps, workers, chief, ps_kind, worker_kind, args)
        made.append(c)
        return c.start() if start else c

    yield make
    for c in made:
        c.stop()


@pytest.fixture(scope="module", autouse=True)
def only_compared_ops(request):
    """A module that sets COMPARES = False compares nothing with TensorFlow: that its graphs have an op is no sign that the op is right (tools/ops-doc)."""
    with pytest.MonkeyPatch.context() as env:
        if not getattr(request.module, "COMPARES", True):
            env.delenv("TRAINERA_OPS_SEEN", raising=False)
        yield


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One cluster (2 ps, 2 workers, all ours) for the tests of a module; a test's variables and queues are cleared before the next (see fresh)."""
    c = Cluster(tmp_path_factory.mktemp("shared"), 2, 2, 0, "trn", "trn", ())
    try:
        yield c.start()
    finally:
        c.stop()


@pytest.fixture
def fresh(shared):
    """The module's cluster with empty containers."""
    for t in shared.tasks:
        assert t.proc.poll() is None, f"/job:{t.job}/task:{t.index} ended with {t.proc.poll()}:\n{t.log()[-6000:]}"
    tf = sys.modules["tensorflow"].compat.v1
    tf.Session.reset(shared.target("worker"), config=tf.ConfigProto(operation_timeout_in_ms=20000))
    return shared


def tf_server(spec, job, index=0):
    """A task of the real TensorFlow inside this process, quicker to have than a process of its own. TensorFlow cannot end one: it stays until we end."""
    tf = sys.modules["tensorflow"]
    return tf.distribute.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=index)


@pytest.fixture(autouse=True)
def fresh_graph():
    """Every test starts with an empty default graph. Tests without TensorFlow do not pay for importing it."""
    tf = sys.modules.get("tensorflow")
    if tf:
        tf.compat.v1.disable_v2_behavior()
        tf.compat.v1.reset_default_graph()
    yield
