"""Fourier transforms."""
import numpy as np
import tensorflow as tf

from cases_math import rand
from kernels import Case as C


def cases_fft(rng, quick):
    for t, r in ((np.complex64, np.float32), (np.complex128, np.float64)):
        tol = dict(tol=1e-3, atol=1e-3) if t is np.complex64 else dict(tol=1e-9, atol=1e-9)
        real, cplx = tf.as_dtype(r), tf.as_dtype(t)
        for shape in ((1,), (2,), (8,), (7,), (12,), (3, 5), (2, 16), (2, 3, 4), (5, 4, 3), (2, 4, 6, 5), (0,), (2, 0), ()):
            for n, name in ((1, ""), (2, "2D"), (3, "3D")):
                x = rand(rng, t, shape, -3, 3)
                if 0 not in shape:
                    yield C("FFT" + name, [x], Tcomplex=cplx, **tol)
                    yield C("IFFT" + name, [x], Tcomplex=cplx, **tol)
                if len(shape) < n or 0 in shape:
                    continue
                full = list(shape[-n:])
                for length in (full, [max(d - 1, 1) for d in full], [d + 1 for d in full], [-1] * n, full[:-1]):
                    yield C("RFFT" + name, [rand(rng, r, shape, -3, 3), np.array(length, np.int32)], Treal=real, Tcomplex=cplx, **tol)
                for length in (full[:-1] + [2 * (full[-1] - 1)], full[:-1] + [2 * full[-1] - 1], full[:-1] + [2 * full[-1] + 1], [1] * n):
                    if 0 not in length:
                        yield C("IRFFT" + name, [x, np.array(length, np.int32)], Treal=real, Tcomplex=cplx, **tol)
        yield C("FFT", [rand(rng, t, (3, 100), -3, 3)], Tcomplex=cplx, **tol)
        yield C("FFT", [rand(rng, t, (257,), -3, 3)], Tcomplex=cplx, **tol)
