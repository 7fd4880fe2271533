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
