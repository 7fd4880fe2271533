"""Softmax regression; the labels sparse, dense or smoothed."""
from trainer import digits, feeder, main, minimize, tf

VARIANTS = {"sparse": {}, "dense": {"labels": "dense"}, "smoothed": {"labels": "smoothed"}}
QUICK = {"sparse"}


def program(run, labels="sparse"):
    xs, ys = digits(128)
    with run.device():
        x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
        w = tf.get_variable("w", [64, 10], initializer=tf.random_normal_initializer(stddev=0.1))
        b = tf.get_variable("b", [10], initializer=tf.zeros_initializer())
        logits = tf.matmul(tf.reshape(x, [-1, 64]), w) + b
        if labels == "sparse":
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        elif labels == "dense":
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.one_hot(y, 10), logits=logits))
        else:
            loss = tf.losses.softmax_cross_entropy(tf.one_hot(y, 10), logits, label_smoothing=0.1)
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32))
        train = minimize(loss, 0.05)
    return run.train(loss, train, feeder([x, y], [xs, ys]), values={"right": right, "softmax": tf.nn.softmax(logits)})


if __name__ == "__main__":
    main()
