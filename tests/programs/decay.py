"""Every schedule of the learning rate: the rates and what they train come out the same."""
from trainer import feeder, main, np, tf

t = tf.train
SCHEDULES = {
    "exponential": lambda s: t.exponential_decay(0.2, s, 5, 0.8),
    "staircase": lambda s: t.exponential_decay(0.2, s, 5, 0.8, staircase=True),
    "natural": lambda s: t.natural_exp_decay(0.2, s, 10, 0.5),
    "inverse": lambda s: t.inverse_time_decay(0.2, s, 5, 0.5),
    "polynomial": lambda s: t.polynomial_decay(0.2, s, 25, 0.01, power=2.0),
    "cycle": lambda s: t.polynomial_decay(0.2, s, 8, 0.01, cycle=True),
    "piecewise": lambda s: t.piecewise_constant(s, [5, 10, 15], [0.2, 0.1, 0.05, 0.02]),
    "cosine": lambda s: t.cosine_decay(0.2, s, 30, 0.1),
    "restarts": lambda s: t.cosine_decay_restarts(0.2, s, 6, 1.5, 0.9),
    "linear-cosine": lambda s: t.linear_cosine_decay(0.2, s, 30),
    "noisy-linear-cosine": lambda s: t.noisy_linear_cosine_decay(0.2, s, 30),
}
VARIANTS = {k: {"schedule": k} for k in SCHEDULES}
QUICK = {"staircase", "cycle", "piecewise", "restarts"}


def program(run, schedule):
    rng = np.random.RandomState(2)
    xs = rng.randn(128, 4).astype(np.float32)
    ys = np.tanh(xs @ rng.randn(4, 1)).astype(np.float32)
    with run.device():
        x, y = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
        loss = tf.reduce_mean(tf.square(tf.tanh(tf.layers.dense(x, 1)) - y))
        step = tf.train.get_or_create_global_step()
        rate = SCHEDULES[schedule](step)
        train = t.MomentumOptimizer(rate, 0.5).minimize(loss, global_step=step)
    return run.train(loss, train, feeder([x, y], [xs, ys]), each={"rate": rate})


if __name__ == "__main__":
    main()
