"""Recurrent cells as one op. The gates and states that gradients take are made up: the arithmetic is the same for any."""
import numpy as np

from cases_math import rand
from kernels import Case as C


def lstm_inputs(rng, t, B, n, c, time=None):
    x = rand(rng, t, (B, n) if time is None else (time, B, n), -2, 2)
    return [x, rand(rng, t, (B, c), -1, 1), rand(rng, t, (B, c), -1, 1), rand(rng, t, (n + c, 4 * c), -1, 1)] + [rand(rng, t, (c,), -1, 1) for _ in range(3)] + [rand(rng, t, (4 * c,), -1, 1)]


def cases_lstm_block(rng, quick):
    for t in (np.float32, np.float16):
        tol = dict(tol=1e-4, atol=1e-5) if t is np.float32 else dict(tol=2e-2, atol=1e-2)
        for B, n, c in ((2, 3, 4), (1, 1, 1), (5, 7, 3), (16, 8, 32)):
            for peep in (False, True):
                for clip, bias in ((3.0, 1.0), (0.3, 0.0), (-1.0, 0.5)):
                    yield C("LSTMBlockCell", lstm_inputs(rng, t, B, n, c), forget_bias=bias, cell_clip=clip, use_peephole=peep, **tol)
                    for time in (1, 4):
                        ins = [np.array(time, np.int64)] + lstm_inputs(rng, t, B, n, c, time)
                        yield C("BlockLSTM", ins, forget_bias=bias, cell_clip=clip, use_peephole=peep, **tol)
                        yield C("BlockLSTMV2", ins, cell_clip=clip, use_peephole=peep, **tol)
                values = [rand(rng, t, (B, c), 0, 1) for _ in range(6)] + [rand(rng, t, (B, c), -1, 1) for _ in range(2)]
                yield C("LSTMBlockCellGrad", lstm_inputs(rng, t, B, n, c) + values, use_peephole=peep, **tol)
                for time, steps in ((1, 1), (4, 4), (4, 2), (3, 0)):
                    ins = [np.array(steps, np.int64)] + lstm_inputs(rng, t, B, n, c, time)
                    values = [rand(rng, t, (time, B, c), 0, 1) for _ in range(7)] + [rand(rng, t, (time, B, c), -1, 1) for _ in range(2)]
                    for op in ("BlockLSTMGrad", "BlockLSTMGradV2"):
                        if t is np.float32 or B < 16:
                            yield C(op, ins + values, use_peephole=peep, **tol)
    f = np.float32
    for bad in (0, 1, 2, 3, 7):
        ins = lstm_inputs(rng, f, 2, 3, 4)
        ins[bad] = rand(rng, f, (5,) * ins[bad].ndim)
        yield C("LSTMBlockCell", ins)
        ins = lstm_inputs(rng, f, 2, 3, 4, 2)
        ins[bad] = rand(rng, f, (5,) * ins[bad].ndim)
        yield C("BlockLSTM", [np.array(2, np.int64)] + ins)
        yield C("BlockLSTM", [np.array([2], np.int64)] + ins)


def gru_inputs(rng, B, n, c):
    f = np.float32
    return [rand(rng, f, (B, n), -2, 2), rand(rng, f, (B, c), -1, 1), rand(rng, f, (n + c, 2 * c), -1, 1), rand(rng, f, (n + c, c), -1, 1), rand(rng, f, (2 * c,), -1, 1), rand(rng, f, (c,), -1, 1)]


def cases_gru_block(rng, quick):
    f = np.float32
    for B, n, c in ((2, 3, 4), (1, 1, 1), (5, 7, 3), (16, 8, 32)):
        yield C("GRUBlockCell", gru_inputs(rng, B, n, c), tol=1e-4, atol=1e-5)
        values = [rand(rng, f, (B, c), 0, 1) for _ in range(3)] + [rand(rng, f, (B, c), -1, 1)]
        yield C("GRUBlockCellGrad", gru_inputs(rng, B, n, c) + values, tol=1e-4, atol=1e-5)
    for bad in range(6):
        ins = gru_inputs(rng, 2, 3, 4)
        ins[bad] = rand(rng, f, (5,) * ins[bad].ndim)
        yield C("GRUBlockCell", ins)
