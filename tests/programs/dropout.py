"""Dropout, input noise and random crops: TensorFlow's random numbers from the same seeds, so the same losses."""
from trainer import digits, feeder, main, tf

VARIANTS = {"dropout": {}, "noise": {"kind": "noise"}, "images": {"kind": "images"}}
QUICK = {"dropout"}


def program(run, kind="dropout"):
    xs, ys = digits(256)
    with run.device():
        x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
        h = x
        if kind == "images":
            h = tf.image.random_flip_left_right(tf.random_crop(tf.pad(h, [[0, 0], [1, 1], [1, 1], [0, 0]]), [32, 8, 8, 1]))
            h = tf.image.random_contrast(tf.image.random_brightness(h, 0.1), 0.9, 1.1)
        h = tf.reshape(h, [-1, 64])
        if kind == "noise":
            h += tf.random_normal(tf.shape(h), stddev=0.1) + tf.random_uniform(tf.shape(h), -0.1, 0.1) + tf.truncated_normal([64], stddev=0.1)
        h = tf.layers.dense(h, 32, tf.nn.relu, kernel_initializer=tf.variance_scaling_initializer())
        if kind == "dropout":
            h = tf.nn.dropout(h, rate=0.3)
            h = tf.layers.dropout(h, 0.2, noise_shape=[1, 32], training=True)
        logits = tf.layers.dense(h, 10, kernel_initializer=tf.orthogonal_initializer())
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
        train = tf.train.AdamOptimizer(0.01 if kind != "images" else 0.03).minimize(loss)
    return run.train(loss, train, feeder([x, y], [xs, ys]), values={"end": tf.get_default_graph().get_collection("trainable_variables")})


if __name__ == "__main__":
    main()
