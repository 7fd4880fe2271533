"""Image and audio summaries: compared as messages; images by their pixels."""
import numpy as np
import tensorflow as tf
from tensorflow.core.framework import summary_pb2

from cases_math import rand
from cases_string import s
from kernels import Case as C


def same_summary(want, got, slack=0):
    a, b = summary_pb2.Summary(), summary_pb2.Summary()
    a.ParseFromString(np.asarray(want[0]).item())
    b.ParseFromString(got[0].item())
    images = []
    for m in (a, b):
        for v in m.value:
            if v.HasField("image"):
                img = tf.io.decode_png(v.image.encoded_image_string).numpy()
                if m is a:
                    images.append(img)
                elif not images or images[0].shape != img.shape or np.abs(images.pop(0).astype(int) - img).max() > slack:
                    return "pixels differ"
                v.image.encoded_image_string = b""
    if a != b:
        return "summaries differ:\n  ours       %s\n  TensorFlow %s" % (str(b)[:600], str(a)[:600])


def near_summary(want, got):
    return same_summary(want, got, 2)


def S(op, inputs, **kw):
    return C(op, inputs, check=same_summary, **kw)


def cases_media(rng, quick):
    for t in (np.uint8, np.float32, np.float16, np.float64):
        for c in (1, 3, 4):
            for n in (1, 2, 5):
                check = same_summary if t is np.uint8 else near_summary  # half arithmetic rounds more often
                yield C("ImageSummary", [s(b"img"), rand(rng, t, (n, 5, 7, c), 0, 200)], check=check)
                yield C("ImageSummary", [s(b"img"), rand(rng, t, (n, 5, 7, c), -3, 2)], check=check, max_images=1)
    bad = rand(rng, np.float32, (1, 3, 3, 3))
    bad[0, 1, 1, 2] = np.nan
    bad[0, 2, 0, 0] = np.inf
    yield S("ImageSummary", [s(b"img"), bad])
    yield S("ImageSummary", [s(b"img"), np.zeros((1, 2, 2, 1), np.float32)])
    yield S("ImageSummary", [s(b"img"), rand(rng, np.float32, (2, 3, 2))])
    yield S("ImageSummary", [s(b"img"), rand(rng, np.float32, (1, 2, 3, 2))])
    yield S("ImageSummary", [s([b"img"]), rand(rng, np.float32, (1, 2, 3, 1))])
    for shape in ((1, 50), (4, 50, 2), (2, 10, 1)):
        for m in (1, 3):
            yield S("AudioSummaryV2", [s(b"snd"), rand(rng, np.float32, shape, -1.2, 1.2), np.float32(44100)], max_outputs=m)
            x = rand(rng, np.float32, shape, -1.2, 1.2)
            yield S("AudioSummary", [s(b"snd"), x], sample_rate=8000.0, max_outputs=m, like=C("AudioSummaryV2", [s(b"snd"), x, np.float32(8000)], max_outputs=m))
    yield S("AudioSummaryV2", [s(b"snd"), rand(rng, np.float32, (5,)), np.float32(44100)])
    yield S("AudioSummaryV2", [s(b"snd"), rand(rng, np.float32, (1, 5)), np.float32(0)])
