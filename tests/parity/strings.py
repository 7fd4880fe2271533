"""What the cases about strings share."""
import numpy as np


def s(x):
    """Strings as an array of bytes objects, in the shape of the nested lists."""
    def enc(v):
        return [enc(e) for e in v] if isinstance(v, list) else v.encode() if isinstance(v, str) else v
    flat = []

    def walk(v):
        if isinstance(v, list):
            shape = (len(v),)
            inner = [walk(e) for e in v]
            return shape + (inner[0] if inner else ())
        flat.append(v)
        return ()
    shape = walk(enc(x))
    a = np.empty(len(flat), dtype=object)
    a[:] = flat
    return a.reshape(shape)
