"""One block of a transformer: attention with several heads and a mask, layer norm, a feed-forward part, positions, warm-up of the rate."""
from trainer import feeder, main, np, tf

VARIANTS = {"self": {}, "causal": {"causal": True}, "einsum": {"einsum": True}}
QUICK = {"self", "einsum"}
TIME, WIDTH, HEADS, WORDS = 8, 16, 4, 20


def norm(x, name):
    with tf.variable_scope(name):
        mean, var = tf.nn.moments(x, [-1], keepdims=True)
        gain = tf.get_variable("gain", [WIDTH], initializer=tf.ones_initializer())
        bias = tf.get_variable("bias", [WIDTH], initializer=tf.zeros_initializer())
        return (x - mean) * tf.rsqrt(var + 1e-6) * gain + bias


def attend(x, mask, einsum):
    size = WIDTH // HEADS

    def heads(name):
        if einsum:
            return tf.einsum("btd,dhk->bhtk", x, tf.get_variable(name, [WIDTH, HEADS, size]))
        h = tf.tensordot(x, tf.get_variable(name, [WIDTH, WIDTH]), 1)
        return tf.transpose(tf.reshape(h, [-1, TIME, HEADS, size]), [0, 2, 1, 3])
    q, k, v = heads("q"), heads("k"), heads("v")
    scores = (tf.einsum("bhqk,bhtk->bhqt", q, k) if einsum else tf.matmul(q, k, transpose_b=True)) / np.sqrt(size)
    seen = tf.nn.softmax(tf.where(tf.broadcast_to(mask, tf.shape(scores)), scores, tf.fill(tf.shape(scores), -1e9)))
    out = tf.reshape(tf.transpose(tf.matmul(seen, v), [0, 2, 1, 3]), [-1, TIME, WIDTH])
    return tf.tensordot(out, tf.get_variable("o", [WIDTH, WIDTH]), 1)


def program(run, causal=False, einsum=False):
    rng = np.random.RandomState(8)
    words = rng.randint(1, WORDS, (256, TIME))
    words[np.arange(TIME)[None] >= rng.randint(3, TIME + 1, 256)[:, None]] = 0
    ys = np.where(words == 0, 0, words[:, ::-1] if not causal else (np.cumsum(words, 1) % WORDS))
    with run.device(), tf.variable_scope("block", initializer=tf.glorot_normal_initializer()):
        x, y = tf.placeholder(tf.int32, [None, TIME]), tf.placeholder(tf.int32, [None, TIME])
        table = tf.get_variable("table", [WORDS, WIDTH])
        angle = tf.cast(tf.range(TIME), tf.float32)[:, None] / tf.pow(1e4, tf.range(0, WIDTH, 2, dtype=tf.float32) / WIDTH)
        h = tf.gather(table, x) * 4.0 + tf.concat([tf.sin(angle), tf.cos(angle)], 1)
        mask = tf.not_equal(x, 0)[:, None, None, :]
        if causal:
            mask = tf.logical_and(mask, tf.cast(tf.matrix_band_part(tf.ones([TIME, TIME]), -1, 0), tf.bool)[None, None])
        h = norm(h + attend(h, mask, einsum), "n1")
        h = norm(h + tf.layers.dense(tf.layers.dense(h, 32, lambda z: z * tf.sigmoid(1.702 * z)), WIDTH), "n2")
        logits = tf.tensordot(h, table, [[2], [1]])
        live = tf.cast(tf.not_equal(x, 0), tf.float32)
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits, weights=live)
        step = tf.train.get_or_create_global_step()
        at = tf.cast(step + 1, tf.float32)
        rate = 0.1 * tf.minimum(tf.rsqrt(at), at * 10 ** -1.5)
        train = tf.train.AdamOptimizer(rate, 0.9, 0.98, 1e-6).minimize(loss, global_step=step)
        right = tf.metrics.accuracy(y, tf.argmax(logits, -1), weights=live)
    return run.train(loss, train, feeder([x, y], [words, ys]), each={"rate": rate}, values={"right": right[1], "table": table})


if __name__ == "__main__":
    main()
