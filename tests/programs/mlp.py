"""An embedding and two dense layers, trained with every optimizer; so each one does its dense and its sparse update."""
from trainer import feeder, main, np, tf

t = tf.train
OPTIMIZERS = {
    "sgd": lambda step: t.GradientDescentOptimizer(0.3),
    "momentum": lambda step: t.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda step: t.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adagrad": lambda step: t.AdagradOptimizer(0.2),
    "adagrad_da": lambda step: t.AdagradDAOptimizer(0.2, step, l1_regularization_strength=0.0005, l2_regularization_strength=0.001),
    "adadelta": lambda step: t.AdadeltaOptimizer(5.0, 0.9, 1e-4),
    "adam": lambda step: t.AdamOptimizer(0.02),
    "rmsprop": lambda step: t.RMSPropOptimizer(0.01, 0.9, 0.5),
    "rmsprop_centered": lambda step: t.RMSPropOptimizer(0.01, 0.9, 0.5, epsilon=1e-4, centered=True),
    "ftrl": lambda step: t.FtrlOptimizer(0.3, l1_regularization_strength=0.001, l2_regularization_strength=0.001),
    "ftrl_shrinkage": lambda step: t.FtrlOptimizer(0.3, l2_shrinkage_regularization_strength=0.001),
    "proximal_sgd": lambda step: t.ProximalGradientDescentOptimizer(0.3, 0.001, 0.001),
    "proximal_adagrad": lambda step: t.ProximalAdagradOptimizer(0.2, 0.1, 0.001, 0.001),
    "average": lambda step: t.GradientDescentOptimizer(0.3),
}
VARIANTS = {f"{name}-{kind}": {"optimizer": name, "resource": kind == "resource"} for name in OPTIMIZERS for kind in ("ref", "resource")}
QUICK = {"adam-ref", "adam-resource", "momentum-ref", "ftrl-resource", "adagrad-ref", "rmsprop-resource"}


def program(run, optimizer="sgd", resource=False):
    rng = np.random.RandomState(3)
    ids, xs = rng.randint(0, 50, (256, 3)).astype(np.int64), rng.randn(256, 6).astype(np.float32)
    ys = (np.sin(ids).sum(1) + xs @ rng.randn(6) > 0).astype(np.int64)
    start = tf.glorot_uniform_initializer(seed=5)
    with run.device(), tf.variable_scope("mlp", initializer=start, use_resource=resource):
        i, x, y = tf.placeholder(tf.int64, [None, 3]), tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.int64, [None])
        table = tf.get_variable("table", [50, 4])
        h = tf.concat([x, tf.reshape(tf.nn.embedding_lookup(table, i), [-1, 12])], 1)
        for n, width in enumerate([16, 8]):
            w = tf.get_variable(f"w{n}", [h.shape[1], width])
            b = tf.get_variable(f"b{n}", [width], initializer=tf.zeros_initializer())
            h = tf.nn.tanh(tf.nn.xw_plus_b(h, w, b))
        logits = tf.matmul(h, tf.get_variable("out", [8, 2]))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        step = tf.train.get_or_create_global_step()
        opt = OPTIMIZERS[optimizer](step)
        train = opt.minimize(loss, global_step=step)
        values = {v.op.name: v for v in tf.trainable_variables()}
        if optimizer == "average":
            ema = tf.train.ExponentialMovingAverage(0.9, step)
            with tf.control_dependencies([train]):
                train = ema.apply(tf.trainable_variables())
            values["averages"] = [ema.average(v) for v in tf.trainable_variables()]
        values["slots"] = [opt.get_slot(v, s) for v in tf.trainable_variables() for s in opt.get_slot_names()]
    return run.train(loss, train, feeder([i, x, y], [ids, xs, ys]), values=values)


if __name__ == "__main__":
    main()
