"""Clusters that all programs of a session share: 2 ps and 2 workers of each kind, started when the first program wants them.

Marks: `slow` is only run by `make test-all`.
"""
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "interop")]
from clusters import Cluster  # noqa: E402

KINDS = {"tf": ("tf", "tf"), "trn": ("trn", "trn"), "mixed": ("trn", "tf")}  # ps, workers


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: run by `make test-all` only")


@pytest.fixture(scope="session")
def clusters(tmp_path_factory):
    """clusters(kind) -> the session's cluster of that kind with nothing left of the program before."""
    made, servers = {}, []

    def get(kind):
        from trainer import tf
        if kind not in made:
            ps, workers = KINDS[kind]
            made[kind] = c = Cluster(tmp_path_factory.mktemp(kind), 2, 2, 0, ps, workers, ())
            for t in c.tasks:
                if t.kind == "trn":
                    t.start(wait=False)
                else:  # in this process, which has TensorFlow loaded already; it cannot be ended before we end
                    servers.append(tf.distribute.Server(c.spec, t.job, t.index))
        c = made[kind]
        for t in c.tasks:
            if t.proc:
                t.wait_up()
        tf.Session.reset(c.target(), config=tf.ConfigProto(operation_timeout_in_ms=20000))
        return c

    yield get
    for c in made.values():
        c.stop()
