"""Quick form of kernels.py for `make test`."""
import kernels


def test_kernels_agree_with_tensorflow():
    n, bad, ops = kernels.run(quick=True)
    assert not bad, "\n".join("%s\n  %s" % b for b in bad[:10])
    assert n > 1000 and len(ops) > 50
