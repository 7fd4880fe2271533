"""Quick form of kernels.py for `make test`."""
import kernels


def test_kernels_agree_with_tensorflow():
    n, bad, ops = kernels.run(quick=True)
    assert not bad, "\n".join("%s\n  %s" % b for b in bad[:10])
    assert n > 1000 and len(ops) > 50


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
