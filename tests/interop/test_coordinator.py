"""ParameterServerStrategy with its coordinator, without Keras: TensorFlow (2.15 and 2.21) is coordinator, the ps and workers ours or its own. The same numbers."""
from importlib.metadata import packages_distributions, version

import numpy as np
import pytest
from coordinators import results, same


MODES = "loop,plain" if version(packages_distributions()["tensorflow"][0]).startswith("2.15") else "loop,plain,tutorial"  # test_coordinated.py has it for 2.15, with Keras 2
KINDS = {1: [("trn", "tf"), ("tf", "tf")], 2: [("trn", "trn"), ("trn", "tf"), ("tf", "trn"), ("tf", "tf")]}  # ps, worker; the last is TensorFlow alone


@pytest.fixture(scope="module", params=[1, 2])
def runs(tmp_path_factory, request):
    """(kinds, what they give), …, what TensorFlow gives"""
    kinds = KINDS[request.param]
    *ours, theirs = results(tmp_path_factory, request.param, MODES, kinds)
    return list(zip(kinds, ours)), theirs


def test_custom_loop(runs):
    for kind, got in runs[0]:
        ours, theirs = got["loop"], runs[1]["loop"]
        assert ours["count"] == ours["restored_count"] == 20, kind
        same(ours, theirs, rtol=1e-6)
        np.testing.assert_array_equal(ours["restored"], ours["table"])


def test_plain(runs):
    """Partitioners, tables, metrics, evaluation, errors, checkpoints."""
    for _, got in runs[0]:
        plain_as(got["plain"], runs[1]["plain"])


@pytest.mark.skipif("tutorial" not in MODES, reason="test_coordinated.py has it")
def test_tutorial(runs):
    for _, got in runs[0]:
        assert got["tutorial"]["accuracy"][-1] > 0.8
        same(got["tutorial"], runs[1]["tutorial"], rtol=1e-5, atol=1e-6)


def plain_as(ours, theirs):
    assert ours["shards"] == theirs["shards"] and len(ours["shards"]["fixed"]) == 3
    assert ours["error"] == theirs["error"] and ours["error"][0] == "InvalidArgumentError" and ours["kept"] == theirs["kept"]
    for key in ("loss", "accuracy", "checked", "table", "w", "part"):
        np.testing.assert_allclose(ours[key], theirs[key], rtol=1e-5, atol=1e-6, err_msg=key)
    for x, y in zip(ours["slots"], theirs["slots"], strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-7)
    for key in ("early", "late"):
        assert ours[key][0] == theirs[key][0] == {"early": 8, "late": 12}[key]
        np.testing.assert_allclose(ours[key][1], theirs[key][1], rtol=1e-5, atol=1e-6, err_msg=key)
    np.testing.assert_array_equal(ours["late"][1], ours["table"])
    np.testing.assert_array_equal(ours["part"], ours["table"])
    assert all(v == np.arange(40.0).reshape(10, 4).tolist() for v in ours["late"][2].values())
