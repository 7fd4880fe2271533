"""A two-layer convnet on images like MNIST's, only smaller; also with the layers of older tutorials, and separable convolutions."""
from trainer import digits, feeder, main, tf

VARIANTS = {"mnist": {}, "lrn": {"kind": "lrn"}, "layers": {"kind": "layers"}, "separable": {"kind": "separable"}}
QUICK = {"mnist"}


def weights(name, shape):
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=0.1 if name[0] in "wo" else 0.4))


def bias(name, n):
    return tf.get_variable(name, [n], initializer=tf.constant_initializer(0.1))


def body(x, kind):
    if kind == "layers":
        h = tf.layers.conv2d(x, 8, 5, padding="same", activation=tf.nn.relu)
        h = tf.layers.max_pooling2d(h, 2, 2)
        h = tf.layers.conv2d(h, 16, 3, strides=2, padding="valid", activation=tf.nn.relu, kernel_regularizer=tf.nn.l2_loss)
        return tf.layers.dense(tf.layers.flatten(h), 32, tf.nn.relu)
    if kind == "separable":
        h = tf.nn.separable_conv2d(x, weights("d1", [3, 3, 1, 4]), weights("p1", [1, 1, 4, 8]), [1, 1, 1, 1], "SAME")
        h = tf.nn.avg_pool2d(tf.nn.relu6(h + bias("b1", 8)), 2, 2, "SAME")
        h = tf.nn.elu(tf.nn.depthwise_conv2d(h, weights("d2", [3, 3, 8, 2]), [1, 2, 2, 1], "SAME") + bias("b2", 16))
        return tf.layers.flatten(h)
    h = tf.nn.relu(tf.nn.conv2d(x, weights("w1", [5, 5, 1, 8]), 1, "SAME") + bias("b1", 8))
    h = tf.nn.max_pool2d(h, 2 if kind == "mnist" else 3, 2, "SAME")
    if kind == "lrn":
        h = tf.nn.lrn(h, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(h, weights("w2", [5, 5, 8, 16]), 1, "SAME"), bias("b2", 16)))
    h = tf.reshape(tf.nn.max_pool2d(h, 2, 2, "SAME"), [-1, 4 * 16])
    return tf.nn.relu(tf.matmul(h, weights("w3", [64, 32])) + bias("b3", 32))


def program(run, kind="mnist"):
    xs, ys = digits(256)
    with run.device():
        x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
        h = body(x, kind)
        logits = tf.matmul(h, weights("out", [h.shape[-1], 10]))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        loss += 1e-4 * tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES) or [tf.constant(0.0)])
        train = tf.train.AdamOptimizer(0.003 if kind in ("mnist", "layers") else 0.01).minimize(loss)
        right = tf.reduce_mean(tf.cast(tf.nn.in_top_k(logits, y, 1), tf.float32))
    return run.train(loss, train, feeder([x, y], [xs, ys]), values={"right": right, "logits": logits})


if __name__ == "__main__":
    main()
