"""Input pipelines of images and sound: files are read, decoded and prepared by the cluster, and come out as from TensorFlow itself."""
import numpy as np
import pytest
import tensorflow as tf

from both import same

tf1 = tf.compat.v1


def picture(i, h=47, w=61):
    y, x, c = np.mgrid[:h, :w, :3]
    return (128 + 100 * np.sin(x / (4 + i) + c) * np.cos(y / 7)).astype(np.uint8)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Encoded images as records, by TensorFlow's encoders."""
    folder = tmp_path_factory.mktemp("media")
    with tf.Graph().as_default(), tf1.Session() as s:
        images = [s.run(tf.io.encode_jpeg(picture(i))) for i in range(4)] + [s.run(tf.io.encode_png(picture(i))) for i in range(4, 6)]
        t = np.arange(16000)[:, None]
        wav = s.run(tf.audio.encode_wav((np.sin(t * 0.05 + np.sin(t * 0.001)) * 0.6).astype(np.float32)[:15000], 16000))
    with tf.io.TFRecordWriter(str(folder / "images")) as w:
        for i, b in enumerate(images):
            w.write(tf.train.Example(features=tf.train.Features(feature={
                "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b])),
                "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))})).SerializeToString())
    (folder / "clip.wav").write_bytes(wav)
    (folder / "bad.wav").write_bytes(wav[:40])
    return folder


@pytest.mark.asan
def test_images(fresh, files):
    def prepare(record):
        e = tf.io.parse_single_example(record, {"image/encoded": tf.io.FixedLenFeature([], tf.string), "image/class/label": tf.io.FixedLenFeature([], tf.int64)})
        x = tf.image.convert_image_dtype(tf.io.decode_jpeg(e["image/encoded"], channels=3), tf.float32)
        x = tf1.image.resize_bilinear(tf.image.central_crop(x, 0.875)[None], [29, 29], align_corners=False)[0]
        return (x - 0.5) * 2, e["image/class/label"]

    batch = tf.data.TFRecordDataset(str(files / "images")).map(prepare, num_parallel_calls=2).batch(2)
    it = tf1.data.make_initializable_iterator(batch)
    got = same(fresh.target("worker"), it.get_next(), before=[it.initializer], times=4, rtol=1e-5, atol=1e-5)
    assert [len(g[0]) for g in got[:3]] == [2, 2, 2] and got[3].code == tf.errors.OUT_OF_RANGE


def test_images_through_a_queue(fresh, files):
    """Files that the client feeds, a window cut out while decoding, and an image back as a file."""
    q = tf1.FIFOQueue(10, [tf.string])
    feed = tf1.placeholder(tf.string, [None])
    put = q.enqueue_many([feed])
    data = q.dequeue()
    shape = tf1.image.extract_jpeg_shape(data)
    cut = tf.io.decode_and_crop_jpeg(data, tf.stack([shape[0] // 4, shape[1] // 3, shape[0] // 2, shape[1] // 2]), channels=3, ratio=1)
    fetch = [shape, cut, tf.io.encode_png(cut), tf.io.encode_jpeg(cut, quality=70), tf.image.adjust_jpeg_quality(cut, 50)]
    images = [e.features.feature["image/encoded"].bytes_list.value[0]
              for e in (tf.train.Example.FromString(r) for r in tf1.io.tf_record_iterator(str(files / "images")))]
    with tf1.Session(fresh.target("worker"), config=tf1.ConfigProto(operation_timeout_in_ms=60000)) as ours, tf1.Session() as theirs:
        for s in (ours, theirs):
            s.run(put, {feed: images[:5]})
        for _ in range(4):
            for a, b in zip(ours.run(fetch), theirs.run(fetch)):
                assert np.array_equal(a, b)
        with pytest.raises(tf.errors.InvalidArgumentError):
            ours.run(fetch)  # a PNG: it has no JPEG header


@pytest.mark.parametrize("name", ["clip.wav", "bad.wav", "none.wav"])
def test_speech(fresh, files, name):
    """As the speech_commands tutorial reads its clips."""
    path = tf1.placeholder(tf.string, [])
    clip = tf1.audio.decode_wav(tf.io.read_file(path), desired_channels=1, desired_samples=16000)
    spectrum = tf.raw_ops.AudioSpectrogram(input=clip.audio * 0.8, window_size=480, stride=160, magnitude_squared=True)
    mfcc = tf.raw_ops.Mfcc(spectrogram=spectrum, sample_rate=clip.sample_rate, dct_coefficient_count=40)
    fetch = [clip.audio, spectrum, mfcc, tf.audio.encode_wav(clip.audio, clip.sample_rate)]
    got = same(fresh.target("worker"), fetch, {path: str(files / name)}, rtol=1e-4, atol=1e-5)
    assert name != "clip.wav" or got[0][2].shape == (1, 98, 40)
