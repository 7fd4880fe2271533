"""Linear regression, with variables of both kinds."""
from trainer import Run, feeder, main, minimize, np, tf  # noqa: F401

VARIANTS = {"ref": {}, "resource": {"resource": True}}
QUICK = {"ref", "resource"}


def program(run, resource=False):
    rng = np.random.RandomState(1)
    xs = rng.randn(256, 5).astype(np.float32)
    ys = (xs @ [[1.0], [-2.0], [0.5], [3.0], [0.0]] + 0.7 + 0.1 * rng.randn(256, 1)).astype(np.float32)
    with run.device():
        x, y = tf.placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32, [None, 1])
        w = tf.get_variable("w", [5, 1], use_resource=resource)
        b = tf.get_variable("b", [1], initializer=tf.zeros_initializer(), use_resource=resource)
        loss = tf.reduce_mean(tf.squared_difference(tf.matmul(x, w) + b, y))
        step = tf.train.get_or_create_global_step()
        train = minimize(loss, 0.1, global_step=step)
    return run.train(loss, train, feeder([x, y], [xs, ys]), values={"w": w, "b": b, "step": step})


if __name__ == "__main__":
    main()
