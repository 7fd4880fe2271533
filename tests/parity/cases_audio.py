"""Sound. WAV files bit for bit; spectra and coefficients are computed in double on both sides and rounded to float."""
import struct

import numpy as np
import tensorflow as tf

from cases_image import i32
from cases_math import rand
from cases_string import s
from kernels import Case as C


def wav(x, rate=16000, before=b"", after=b"", fmt=16, extra=b"", kind=1, bits=16, per_frame=None, per_second=None):
    n, c = x.shape
    per_frame = 2 * c if per_frame is None else per_frame
    per_second = per_frame * rate if per_second is None else per_second
    body = x.astype("<i2").tobytes()
    head = b"fmt " + struct.pack("<IHHIIHH", fmt, kind, c, rate, per_second, per_frame, bits) + extra
    all_ = b"WAVE" + before + head + after + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", len(all_)) + all_


def code(file):
    """What must come out where TensorFlow's message holds bytes of the file that are no text: its client fails on that."""
    try:
        tf.raw_ops.DecodeWav(contents=file)
    except UnicodeDecodeError:
        return tf.errors.INVALID_ARGUMENT
    except tf.errors.OpError:
        pass
    return None


def cases_wav(rng, quick):
    for n, c in ((0, 1), (1, 1), (7, 2), (100, 1), (33, 5)):
        x = rng.randint(-32768, 32768, (n, c))
        junk, other = b"JUNK\x04\0\0\0abcd", b"LIST\x06\0\0\0abcdef"
        for f in (wav(x), wav(x, 44100, junk), wav(x, 8000, junk + b"bext\0\0\0\0", other), wav(x, fmt=18, extra=b"\0\0"), wav(x) + other, wav(x, 2**31 // c // 2)):
            yield C("DecodeWav", [s(f)])
            for channels, samples in ((1, -1), (3, 10), (-1, 0), (0, -1), (2, 50)):
                yield C("DecodeWav", [s(f)], desired_channels=channels, desired_samples=samples)
            for cut in (0, 3, 4, 11, 12, 15, 20, 30, 36, 40, 43, 44, len(f) - 1):
                yield C("DecodeWav", [s(f[:cut])])
            for _ in range(10 if quick else 60):
                b = bytearray(f)
                b[rng.randint(len(b))] = rng.randint(256)
                yield C("DecodeWav", [s(bytes(b))], code=code(bytes(b)))
        for f in (wav(x, kind=3), wav(x, bits=8), wav(x, per_frame=1), wav(x, per_second=5), wav(x, fmt=17), wav(x, before=b"what\0\0\0\0"), wav(x, after=b"data\0\0\0\0"),
                  wav(x, after=b"LIST\xff\xff\xff\xff"), wav(x, after=b"LIST\xff\xff\xff\x7f"), wav(x, before=b"JUNK\xff\xff\xff\x7f"), wav(x) + b"x"):
            yield C("DecodeWav", [s(f)])
    yield C("DecodeWav", [s([wav(x)])])
    yield C("DecodeWav", [s(wav(x))], desired_channels=-2, code=3)
    yield C("DecodeWav", [s(wav(x))], desired_samples=-2, code=3)
    for n, c in ((0, 1), (1, 1), (50, 2), (10, 3)):
        v = rand(rng, np.float32, (n, c), -1.3, 1.3)
        for rate in (16000, 1, 2**31 - 1, 0, -1):
            yield C("EncodeWav", [v, np.array(rate, np.int32)])
    yield C("EncodeWav", [np.array([[np.nan], [np.inf], [-np.inf], [1.5 / 32768], [-0.5 / 32768]], np.float32), np.array(8000, np.int32)])
    yield C("EncodeWav", [v[:, :0], np.array(8000, np.int32)])
    yield C("EncodeWav", [v[0], np.array(8000, np.int32)])
    yield C("EncodeWav", [v, i32(8000)])


def cases_spectrogram(rng, quick):
    for n, c in ((0, 1), (16, 1), (500, 2), (1600, 1), (300, 3), (40, 0)):
        t = np.arange(n)[:, None]
        x = (np.sin(t * (0.1 + np.arange(c))) * 0.5 + rng.uniform(-0.3, 0.3, (n, c))).astype(np.float32)
        for window, stride in ((2, 1), (16, 16), (25, 10), (64, 7), (400, 160), (480, 160)):
            for squared in (False, True):
                yield C("AudioSpectrogram", [x], window_size=window, stride=stride, magnitude_squared=squared, tol=1e-5, atol=1e-6)
        for window, stride in ((1, 1), (0, 1), (4, 0), (4, -1)):
            yield C("AudioSpectrogram", [x], window_size=window, stride=stride)
    yield C("AudioSpectrogram", [x[0]], window_size=4, stride=2)


def cases_mfcc(rng, quick):
    for shape in ((1, 3, 257), (2, 5, 129), (0, 2, 65), (1, 0, 65), (1, 2, 513)):
        x = rand(rng, np.float32, shape, 0, 30)
        for rate in (8000, 16000, 44100):
            for kw in ({}, {"dct_coefficient_count": 40}, {"upper_frequency_limit": 7000.0}, {"lower_frequency_limit": 0.0, "filterbank_channel_count": 20},
                       {"filterbank_channel_count": 1, "dct_coefficient_count": 1}, {"upper_frequency_limit": 30.0}, {"lower_frequency_limit": 3900.0},
                       {"upper_frequency_limit": 1e30}):
                yield C("Mfcc", [x, np.array(rate, np.int32)], tol=1e-5, atol=1e-5, **kw)
    x = rand(rng, np.float32, (1, 2, 65), 0, 30)
    rate = np.array(8000, np.int32)
    for kw in ({"dct_coefficient_count": 0}, {"dct_coefficient_count": 41}, {"filterbank_channel_count": 0}, {"lower_frequency_limit": -1.0},
               {"upper_frequency_limit": 20.0}, {"upper_frequency_limit": 10.0}):
        yield C("Mfcc", [x, rate], **kw)
    yield C("Mfcc", [x[:, :, :1], rate])
    yield C("Mfcc", [x[0], rate])
    yield C("Mfcc", [x, i32(8000)])
    yield C("Mfcc", [x, np.array(0, np.int32)])
    yield C("Mfcc", [x, np.array(-5, np.int32)])
    yield C("Mfcc", [np.zeros((1, 2, 65), np.float32), rate], tol=1e-5, atol=1e-5)
    yield C("Mfcc", [-x, rate])
