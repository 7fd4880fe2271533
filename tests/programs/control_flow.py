"""tf.cond, tf.while_loop and what is built of them, with gradients through all; as v1's Switch/Merge/Enter/Exit and as functions (v2)."""
from trainer import feeder, main, np, tf

BODIES = {}
VARIANTS = {}
QUICK = {"cond-v1", "cond-v2", "while-v1", "while-v2", "scan-v1", "nested-v2"}


def body(f):
    BODIES[f.__name__] = f
    for v in ("v1", "v2"):
        VARIANTS[f"{f.__name__}-{v}"] = {"kind": f.__name__, "v2": v == "v2"}
    return f


@body
def cond(x, w):
    """Either branch by what is fed; the variable is used in both, and once in a branch within a branch."""
    h = tf.matmul(x, w)
    big = tf.reduce_sum(x) > 0

    def inner():
        return tf.cond(tf.reduce_max(x) > 2.5, lambda: tf.tanh(h) * tf.reduce_mean(w), lambda: tf.sin(h))
    return tf.cond(big, lambda: tf.matmul(tf.nn.relu(h), w), inner)


@body
def loop(x, w):
    """The number of turns depends on data; w is used in every turn, h carries."""
    turns = 2 + tf.cast(tf.reduce_sum(x) > 0, tf.int32)
    _, h = tf.while_loop(lambda i, h: i < turns, lambda i, h: (i + 1, tf.tanh(tf.matmul(h, w)) + 0.1 * x), (0, x))
    return h


@body
def nested(x, w):
    """Loops in loops, a cond in the inner one."""
    def inner(j, h):
        return j + 1, tf.cond(tf.equal(j % 2, 0), lambda: tf.tanh(tf.matmul(h, w)), lambda: h * 0.9)

    def outer(i, h):
        return i + 1, tf.while_loop(lambda j, _: j < i + 1, inner, (0, h))[1]
    return tf.while_loop(lambda i, _: i < 3, outer, (0, x))[1]


@body
def array(x, w):
    """A TensorArray written in a loop, read in another, its gradients through both."""
    def write(i, h, ta):
        h = tf.nn.elu(tf.matmul(h, w))
        return i + 1, h, ta.write(i, h)
    _, h, ta = tf.while_loop(lambda i, *_: i < 4, write, (0, x, tf.TensorArray(tf.float32, 4, clear_after_read=False)))
    _, s = tf.while_loop(lambda i, _: i < 4, lambda i, s: (i + 1, s + ta.read(i) / tf.cast(i + 1, tf.float32)), (0, tf.zeros_like(x)))
    return s + ta.concat()[:tf.shape(x)[0]] + tf.reduce_mean(ta.stack(), 0)


@body
def scan(x, w):
    """map_fn, scan, foldl, foldr."""
    rows = tf.map_fn(lambda r: tf.tanh(tf.linalg.matvec(w, r, transpose_a=True)), x)
    sums = tf.scan(lambda a, r: 0.5 * a + r, rows)
    return sums + tf.foldl(lambda a, r: a + 0.01 * r, rows) - tf.foldr(lambda a, r: 0.9 * a + 0.01 * r, rows)


@body
def case(x, w):
    h, k = tf.matmul(x, w), tf.cast(tf.abs(tf.reduce_sum(x)), tf.int32) % 4
    a = tf.case([(tf.equal(k, 0), lambda: h), (tf.equal(k, 1), lambda: tf.nn.relu(h))], default=lambda: tf.nn.softsign(h), exclusive=True)
    return a + tf.switch_case(k, {0: lambda: h * 0.1, 1: lambda: tf.square(h) * 0.1}, default=lambda: tf.zeros_like(h))


@body
def shapes(x, w):
    """A loop whose carried tensor grows, under control dependencies; parallel_iterations=1; a maximum of turns."""
    def turn(i, rows):
        with tf.control_dependencies([tf.assert_less(i, 3)]):
            return i + 1, tf.concat([rows, tf.tanh(tf.matmul(rows[-4:], w))], 0)
    _, rows = tf.while_loop(lambda i, _: i < 10, turn, (0, x), (tf.TensorShape([]), tf.TensorShape([None, 6])), parallel_iterations=1, maximum_iterations=3)
    return tf.reduce_sum(tf.reshape(rows[-12:], [3, 4, 6]), 0)[:, :6] + tf.reduce_mean(rows, 0)


VARIANTS = {k.replace("loop-", "while-"): v for k, v in VARIANTS.items()}


def program(run, kind, v2):
    rng = np.random.RandomState(6)
    xs = rng.randn(256, 6).astype(np.float32)
    ys = np.tanh(xs @ rng.randn(6, 6) * 0.3).astype(np.float32)
    (tf.enable_control_flow_v2 if v2 else tf.disable_control_flow_v2)()
    try:
        with run.device():
            x, y = tf.placeholder(tf.float32, [32, 6]), tf.placeholder(tf.float32, [32, 6])
            w = tf.get_variable("w", [6, 6], initializer=tf.orthogonal_initializer(0.7), use_resource=v2)
            h = BODIES[kind](x, w)
            out = tf.layers.dense(h, 6, name="out")
            want = y[:out.shape[0]] if out.shape[0] != 32 else y
            loss = tf.reduce_mean(tf.squared_difference(out, want))
            grad = tf.norm(tf.gradients(loss, w)[0])
            train = tf.train.AdamOptimizer(0.01).minimize(loss)
    finally:
        tf.disable_control_flow_v2()
    return run.train(loss, train, feeder([x, y], [xs, ys]), each={"grad": grad}, values={"w": w})


if __name__ == "__main__":
    main()
