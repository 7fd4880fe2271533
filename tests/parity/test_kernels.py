"""kernels.py as tests: a quick form for `make test`, all of it for `make test-all`."""
import re
import subprocess
import sys

import pytest

import kernels


def test_kernels_agree_with_tensorflow():
    n, bad, ops = kernels.run(quick=True)
    assert not bad, "\n".join("%s\n  %s" % b for b in bad[:10])
    assert n > 1000 and len(ops) > 50


@pytest.mark.slow
def test_all_cases_agree_with_tensorflow():
    """In a process of its own: TensorFlow's generators with a seed go on where the quick form left them."""
    r = subprocess.run([sys.executable, kernels.__file__], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-1000:]
    assert int(re.search(r"^(\d+) cases", r.stdout, re.M)[1]) > 100_000


def test_convolutions_without_onednn(monkeypatch):
    """The code that stands in for the library, on the same cases."""
    monkeypatch.setenv("TRAINERA_ONEDNN", "0")
    n, bad, _ = kernels.run(quick=True, only="Conv")
    assert not bad, "\n".join("%s\n  %s" % b for b in bad[:10])
    assert n > 500


def test_convolutions_by_winograd(monkeypatch):
    """All kinds; by default gradients of inputs and what is large."""
    monkeypatch.setenv("TRAINERA_WINOGRAD", "all")
    n, bad, _ = kernels.run(quick=True, only="Conv2D")
    assert not bad, "\n".join("%s\n  %s" % b for b in bad[:10])
    assert n > 200
