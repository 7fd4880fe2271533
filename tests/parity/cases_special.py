"""Special functions."""
import numpy as np

from kernels import Case as C


def cases_special(rng, quick):
    for t in (np.float32, np.float64):
        tol = dict(tol=3e-4, atol=2e-5) if t is np.float32 else dict(tol=1e-7, atol=1e-12)

        def u(lo, hi, n=60):
            return rng.uniform(lo, hi, n).astype(t)

        yield C("Erfinv", [np.concatenate([u(-0.99, 0.99), np.array([0, 1, -1, 1.5, np.nan, 1e-6], t)])], **tol)
        yield C("Ndtri", [np.concatenate([u(0.001, 0.999), np.array([0, 1, 0.5, np.nan, 1e-6], t)])], **tol)
        for op in ("BesselI0e", "BesselI1e", "BesselI0", "BesselI1"):
            yield C(op, [np.concatenate([u(-20, 20), np.array([0, 35, -50, 80], t)])], **tol)
        for op in ("Igamma", "Igammac"):
            for a, x in (((0.1, 2), (0, 5)), ((1, 20), (0, 30)), ((50, 90), (40, 100))):
                yield C(op, [u(*a), u(*x)], **tol)
            yield C(op, [np.array([1, 0, -1, 2, 2, np.nan], t), np.array([0, 1, 1, -1, np.inf, 1], t)], **tol)
            yield C(op, [u(1, 5, 4).reshape(4, 1), u(1, 5, 3)], **tol)
        yield C("Zeta", [u(1.1, 12), u(0.2, 20)], **tol)
        yield C("Zeta", [np.array([1, 0.5, 2, 3], t), np.array([2, 2, 1, 0], t)], **tol)
        yield C("Polygamma", [rng.randint(0, 5, 40).astype(t), u(0.3, 15, 40)], **tol)
        yield C("Polygamma", [np.array([0.5, -1], t), np.array([2, 2], t)], **tol)
        yield C("Betainc", [u(0.2, 9), u(0.2, 9), u(0, 1)], **tol)
        yield C("Betainc", [np.array(2, t), u(0.2, 9), np.array(0.3, t)], **tol)
        yield C("Betainc", [np.array([1, 0, 1, 2], t), np.array([1, 1, -1, 2], t), np.array([0, 0.5, 0.5, 1], t)], **tol)
        yield C("Betainc", [u(1, 2, 3), u(1, 2, 4), u(0, 1, 3)])


def cases_more_special(rng, quick):
    for t in (np.float32, np.float64):
        tol = dict(tol=2e-5, atol=2e-6) if t is np.float32 else dict(tol=1e-9, atol=1e-12)

        def u(lo, hi, *more):
            return np.concatenate([rng.uniform(lo, hi, 60), more]).astype(t)

        for op in ("BesselJ0", "BesselJ1"):
            yield C(op, [u(-30, 30, 0, np.nan)], **tol)
        for op in ("BesselY0", "BesselY1", "BesselK0", "BesselK1", "BesselK0e", "BesselK1e"):
            yield C(op, [u(0.01, 30, np.nan, 1e-5, 80)], **tol)
        yield C("Spence", [u(0, 5, 0, 1, 2, 0.5, 1.5, 100, 1e-4, -1, np.nan)], **tol)
        yield C("Expint", [u(0.01, 40, 1, 2, 60, np.nan, 0, -0.5, -3, -1000)], **tol)
        yield C("Dawsn", [u(-10, 10, 0, 0.5, 30, -100, 1e-5, np.nan)], **tol)
        for op in ("FresnelSin", "FresnelCos"):
            yield C(op, [u(-12, 12, 0, 0.5, 5, -30, 1e-5, np.nan)], **tol)
        loose = dict(tol=2e-3, atol=1e-5) if t is np.float32 else dict(tol=1e-6, atol=1e-9)
        for a, x in (((0.1, 2), (0.01, 5)), ((1, 20), (0.1, 30)), ((50, 90), (40, 100))):
            a, x = rng.uniform(*a, 40).astype(t), rng.uniform(*x, 40).astype(t)
            yield C("IgammaGradA", [a, x], **loose)
            yield C("RandomGammaGrad", [a, x], **loose)
        yield C("IgammaGradA", [np.array([[1], [2]], t), np.array([1, 2, 3], t)], **loose)
        yield C("RandomGammaGrad", [np.array([1, 2], t), np.array([1, 2, 3], t)], **loose)
    for t in (np.float16,):
        for op in ("BesselJ0", "BesselK1e", "Spence", "Dawsn", "FresnelSin", "Expint"):
            yield C(op, [rng.uniform(0.1, 5, 20).astype(t)], tol=5e-3, atol=5e-3)
