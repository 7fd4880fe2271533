"""Streaming metrics over an evaluation, after a short training: their local variables live on the ps too."""
from trainer import feeder, main, minimize, np, tf

VARIANTS = {"two-classes": {}, "many-classes": {"many": True}}
QUICK = {"two-classes"}


def program(run, many=False):
    rng = np.random.RandomState(13)
    classes = 5 if many else 2
    xs = rng.randn(320, 6).astype(np.float32)
    ys = np.argmax(xs @ rng.randn(6, classes) + 0.5 * rng.randn(320, classes), 1).astype(np.int64)
    m = tf.metrics
    with run.device():
        x, y = tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.int64, [None])
        logits = tf.layers.dense(x, classes)
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
        train = minimize(loss, 0.3)
        guess, p = tf.argmax(logits, 1), tf.nn.softmax(logits)
        weights = tf.abs(x[:, 0])
        found = {"accuracy": m.accuracy(y, guess), "weighted": m.accuracy(y, guess, weights=weights), "mean": m.mean(loss), "mean_tensor": m.mean_tensor(tf.reshape(p[:4], [4, classes])),
                 "rmse": m.root_mean_squared_error(tf.one_hot(y, classes), p), "mae": m.mean_absolute_error(tf.one_hot(y, classes), p),
                 "iou": m.mean_iou(y, guess, classes), "per_class": m.mean_per_class_accuracy(y, guess, classes),
                 "cosine": m.mean_cosine_distance(tf.nn.l2_normalize(tf.one_hot(y, classes), 1), tf.nn.l2_normalize(p, 1), 1)}
        if many:
            found.update({"recall_at_k": m.recall_at_k(y[:, None], p, 2), "precision_at_k": m.precision_at_k(y[:, None], p, 2),
                          "average_at_k": m.average_precision_at_k(y[:, None], p, 3), "below": m.percentage_below(p, 0.2)})
        else:
            at = [0.2, 0.5, 0.8]
            q = p[:, 1]
            found.update({"auc": m.auc(y, q, num_thresholds=50, summation_method="careful_interpolation"), "pr": m.auc(y, q, curve="PR", num_thresholds=50, summation_method="careful_interpolation"),
                          "precision": m.precision(y, guess), "recall": m.recall(y, guess, weights=weights), "tp": m.true_positives(y, guess), "fn": m.false_negatives(y, guess),
                          "precision_at": m.precision_at_thresholds(y, q, at), "recall_at": m.recall_at_thresholds(y, q, at),
                          "sensitivity": m.sensitivity_at_specificity(y, q, 0.8, num_thresholds=50), "specificity": m.specificity_at_sensitivity(y, q, 0.8, num_thresholds=50),
                          "covariance": m.mean_squared_error(tf.cast(y, tf.float32), q)})
    return run.train(loss, train, feeder([x, y], [xs, ys]), each={k: v[1] for k, v in found.items()}, values={"end " + k: v[0] for k, v in found.items()})


if __name__ == "__main__":
    main()
