"""What reads images for training does on both sides: a random part, run after run at TensorFlow's places, resized, turned and drawn on; boxes of a detector."""
import numpy as np
import pytest
import tensorflow as tf

import both

tf1 = tf.compat.v1


@pytest.fixture
def target(fresh):
    return fresh.target("worker")


def photo(seed, h=37, w=52):
    return tf.constant(np.random.RandomState(seed).randint(0, 256, (h, w, 3)).astype(np.uint8))


@pytest.mark.asan
def test_distorted(target):
    """Inception's distortions: the generator goes on from run to run."""
    tf1.reset_default_graph()
    boxes = tf.constant([[[0.1, 0.2, 0.7, 0.8], [0.3, 0.3, 0.9, 0.6]]])
    image = tf.cast(photo(1), tf.float32) / 255.0
    begin, size, box = tf1.image.sample_distorted_bounding_box(tf.shape(image), boxes, min_object_covered=0.3, aspect_ratio_range=[0.6, 1.6], area_range=[0.1, 1.0], seed=7)
    part = tf.slice(image, begin, size)
    part.set_shape([None, None, 3])
    small = [tf1.image.resize_images(part, [24, 24], method=m) for m in range(4)]
    drawn = tf1.image.draw_bounding_boxes(tf.expand_dims(image, 0), box)
    both.same(target, [begin, size, box, drawn, *small], times=6, rtol=1e-5, atol=1e-5)
    none = tf.image.stateless_sample_distorted_bounding_box(tf.shape(image), tf.zeros([1, 0, 4]), seed=[3, 4], use_image_if_no_bounding_boxes=True)
    both.same(target, list(none), times=2)


def test_resized(target):
    tf1.reset_default_graph()
    image = photo(2)
    for method in ("bilinear", "lanczos3", "lanczos5", "bicubic", "gaussian", "nearest", "area", "mitchellcubic"):
        for antialias in (False, True):
            both.same(target, tf.image.resize(image, [20, 61], method=method, antialias=antialias), rtol=1e-5, atol=1e-3)


@pytest.mark.asan
def test_detector(target):
    """Crops of proposals with gradients, then the best boxes of each class."""
    tf1.reset_default_graph()
    rng = np.random.RandomState(5)
    features, corner = tf.constant(rng.rand(2, 12, 10, 4).astype(np.float32)), rng.rand(9, 2).astype(np.float32) * 0.5
    boxes = tf.constant(np.concatenate([corner, corner + 0.1 + 0.4 * rng.rand(9, 2).astype(np.float32)], 1))
    crops = tf.image.crop_and_resize(features, boxes, [0, 1, 0, 1, 1, 0, 0, 0, 1], [5, 4])
    loss = tf.reduce_sum(crops * tf.constant(rng.rand(9, 5, 4, 4).astype(np.float32)))
    both.same(target, [crops, *tf.gradients(loss, [features, boxes])], rtol=1e-4, atol=1e-4)
    scores = tf.constant(rng.rand(9).astype(np.float32))
    kept, soft = tf.image.non_max_suppression_with_scores(boxes, scores, 6, iou_threshold=0.4, soft_nms_sigma=0.5)
    both.same(target, [tf.image.non_max_suppression(boxes, scores, 5), kept, soft, *tf.image.non_max_suppression_padded(boxes, scores, 20, pad_to_max_output_size=True)])
    many = tf.constant(rng.rand(2, 30, 1, 4).astype(np.float32))
    both.same(target, list(tf.image.combined_non_max_suppression(many, tf.constant(rng.rand(2, 30, 3).astype(np.float32)), 5, 12)))
