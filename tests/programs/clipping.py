"""Gradients clipped by value, by norm, by average norm and all together, dense and sparse ones."""
from trainer import feeder, main, np, tf

VARIANTS = {k: {"how": k} for k in ("value", "norm", "average", "global", "global-given")}
QUICK = {"value", "norm", "global"}


def clip(grads, how):
    if how == "global":
        return tf.clip_by_global_norm(grads, 0.5)
    if how == "global-given":
        return tf.clip_by_global_norm(grads, 0.5, use_norm=tf.global_norm(grads) + 0.1)
    f = {"value": lambda g: tf.clip_by_value(g, -0.02, 0.05), "norm": lambda g: tf.clip_by_norm(g, 0.3, axes=[0]),
         "average": lambda g: tf.clip_by_average_norm(g, 0.02)}[how]
    return [f(g) if how == "norm" else f(tf.convert_to_tensor(g)) for g in grads], tf.global_norm(grads)


def program(run, how):
    rng = np.random.RandomState(5)
    ids, xs = rng.randint(0, 30, 256), rng.randn(256, 4).astype(np.float32)
    ys = (np.cos(ids)[:, None] * 3 + xs[:, :1]).astype(np.float32)
    with run.device():
        i, x, y = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
        table = tf.get_variable("table", [30, 4])
        h = tf.layers.dense(tf.concat([x, tf.gather(table, i)], 1), 8, tf.nn.softplus)
        loss = tf.losses.huber_loss(y, tf.layers.dense(h, 1), delta=2.0)
        opt = tf.train.GradientDescentOptimizer(0.5)
        pairs = opt.compute_gradients(loss)
        grads, norm = clip([g for g, _ in pairs], how)
        train = opt.apply_gradients(zip(grads, [v for _, v in pairs]))
    return run.train(loss, train, feeder([i, x, y], [ids, xs, ys]), each={"norm": norm}, values={"table": table})


if __name__ == "__main__":
    main()
