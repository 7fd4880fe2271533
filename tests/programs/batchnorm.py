"""Batch norm: training moves the averages, evaluation uses them. One graph holds both; a placeholder or reuse chooses."""
from trainer import digits, feeder, main, np, tf

VARIANTS = {"fused": {}, "plain": {"fused": False}, "switched": {"switched": True}, "layer": {"kind": "layer"}}
QUICK = {"fused", "switched"}


def program(run, fused=True, switched=False, kind="batch"):
    xs, ys = digits(256)

    def norm(h, training, name):
        if kind == "layer":
            mean, var = tf.nn.moments(h, [1, 2, 3], keepdims=True)
            scale = tf.get_variable(name + "_scale", [h.shape[-1]], initializer=tf.ones_initializer())
            return tf.nn.batch_normalization(h, mean, var, None, scale, 1e-5)
        return tf.layers.batch_normalization(h, training=training, momentum=0.8, fused=fused, name=name)

    def model(x, training):
        with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
            h = tf.layers.conv2d(x, 8, 3, padding="same", use_bias=False, name="c1")
            h = tf.nn.max_pool2d(tf.nn.relu(norm(h, training, "n1")), 2, 2, "SAME")
            h = tf.nn.relu(norm(tf.layers.conv2d(h, 8, 3, use_bias=False, name="c2"), training, "n2"))
            return tf.layers.dense(tf.layers.flatten(h), 10, name="out")

    with run.device():
        x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
        training = tf.placeholder_with_default(True, []) if switched else True
        logits = model(x, training)
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss)
        test = tf.losses.sparse_softmax_cross_entropy(y, logits if switched else model(x, False), loss_collection=None)
    feed = feeder([x, y], [xs, ys])
    tests = []

    def evaluate(step):
        """Before steps 10, 20, …: the loss that evaluation sees."""
        if step and step % 10 == 0:
            tests.append(sess.run(test, {**feed(step), **({training: False} if switched else {})}))
        return feed(step)

    def start(s):
        nonlocal sess
        sess = s
    sess = None
    out = run.train(loss, train, evaluate, start=start, values={v.op.name: v for v in tf.global_variables()})
    out["values"]["tests"] = np.array(tests)
    return out


if __name__ == "__main__":
    main()
