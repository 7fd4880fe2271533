"""Small members of well-known families of models, each for ops and habits that the other programs do not have."""
from trainer import digits, feeder, main, np, tf

MODELS, QUICK, NOISY = {}, {"gan", "dqn", "ctc", "factorization", "second-order"}, set()
VARIANTS = {}
LOOSE = {"mixed": 10}  # half has three digits


def model(f):
    name = f.__name__.replace("_", "-")
    MODELS[name] = f
    VARIANTS[name] = {"kind": name}
    return f


def images(n=256):
    xs, ys = digits(n)
    x, y = tf.placeholder(tf.float32, [32, 8, 8, 1]), tf.placeholder(tf.int32, [32])
    return x, y, feeder([x, y], [(xs - xs.min()) / (xs.max() - xs.min()), ys])


@model
def autoencoder(run):
    """Strided convolutions down, transposed ones up."""
    x, _, feed = images()
    h = tf.layers.conv2d(x, 8, 3, 2, "same", activation=tf.nn.leaky_relu)
    h = tf.layers.conv2d(h, 4, 3, 2, "same", activation=tf.nn.leaky_relu)
    h = tf.layers.conv2d_transpose(h, 8, 3, 2, "same", activation=tf.nn.leaky_relu)
    out = tf.layers.conv2d_transpose(tf.image.resize_nearest_neighbor(h, [4, 4]), 1, 3, 2, "same")
    loss = tf.reduce_mean(tf.square(out - x)) + 0.01 * tf.reduce_mean(tf.abs(tf.image.sobel_edges(out)))
    return loss, tf.train.AdamOptimizer(0.01).minimize(loss), feed, {"psnr": tf.reduce_mean(tf.image.psnr(out, x, 1.0))}


@model
def vae(run):
    """Samples drawn in the graph, two losses."""
    x, _, feed = images()
    h = tf.layers.dense(tf.layers.flatten(x), 24, tf.nn.softplus)
    mean, log = tf.layers.dense(h, 4), tf.layers.dense(h, 4)
    z = mean + tf.exp(0.5 * log) * tf.random_normal(tf.shape(mean))
    out = tf.layers.dense(tf.layers.dense(z, 24, tf.nn.softplus), 64)
    like = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.layers.flatten(x), logits=out), 1)
    kl = -0.5 * tf.reduce_sum(1 + log - tf.square(mean) - tf.exp(log), 1)
    loss = tf.reduce_mean(like + kl) - 40.0  # what noise leaves
    return loss, tf.train.RMSPropOptimizer(0.01).minimize(loss), feed, {"kl": tf.reduce_mean(kl)}


@model
def gan(run):
    """Two optimizers in turn, variables chosen by scope, the second under a control dependency on the first."""
    x, _, feed = images()

    def judge(v):
        with tf.variable_scope("judge", reuse=tf.AUTO_REUSE):
            return tf.layers.dense(tf.layers.dense(v, 24, tf.nn.leaky_relu, name="a"), 1, name="b")
    with tf.variable_scope("make"):
        fake = tf.layers.dense(tf.layers.dense(tf.random_uniform([32, 8], -1, 1), 24, tf.nn.selu), 64, tf.nn.sigmoid)
    real, faked = judge(tf.reshape(x, [32, 64])), judge(fake)
    ce = tf.nn.sigmoid_cross_entropy_with_logits
    d_loss = tf.reduce_mean(ce(labels=tf.ones_like(real), logits=real) + ce(labels=tf.zeros_like(faked), logits=faked))
    g_loss = tf.reduce_mean(ce(labels=tf.ones_like(faked), logits=faked))
    names = {s: tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, s) for s in ("judge", "make")}
    d_train = tf.train.AdamOptimizer(0.005, beta1=0.5).minimize(d_loss, var_list=names["judge"])
    with tf.control_dependencies([d_train]):
        train = tf.train.AdamOptimizer(0.0002, beta1=0.5).minimize(g_loss, var_list=names["make"])
    return d_loss, train, feed, {"g": g_loss}


@model
def dqn(run):
    """A network and its slow copy, actions by one-hot and gather_nd, the copy made every tenth step by a cond."""
    rng = np.random.RandomState(1)
    s, a, r, s2 = tf.placeholder(tf.float32, [32, 6]), tf.placeholder(tf.int32, [32]), tf.placeholder(tf.float32, [32]), tf.placeholder(tf.float32, [32, 6])

    def net(v, name, trainable):
        with tf.variable_scope(name):
            return tf.layers.dense(tf.layers.dense(v, 16, tf.nn.relu, trainable=trainable), 3, trainable=trainable)
    q, slow = net(s, "fast", True), net(s2, "slow", False)
    at = tf.gather_nd(q, tf.stack([tf.range(32), a], 1))
    want = tf.stop_gradient(r + 0.9 * tf.reduce_max(slow, 1) * tf.cast(r > 0, tf.float32))
    loss = tf.losses.huber_loss(want, at) + 0.0 * tf.reduce_sum(q * tf.one_hot(a, 3))
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
    pairs = [(v, tf.global_variables("fast")[i]) for i, v in enumerate(tf.global_variables("slow"))]
    pairs = [(v, w) for v, w in pairs if v.shape == w.shape]
    with tf.control_dependencies([train]):
        train = tf.cond(tf.equal(step % 10, 0), lambda: tf.group(*[tf.assign(v, w) for v, w in pairs]), tf.no_op)
    xs = [rng.randn(256, 6).astype(np.float32), rng.randint(0, 3, 256).astype(np.int32), rng.rand(256).astype(np.float32), rng.randn(256, 6).astype(np.float32)]
    return loss, train, feeder([s, a, r, s2], xs), {"slow": [v for v, _ in pairs]}


@model
def policy(run):
    """Actions drawn in the graph, their log probabilities weighted; entropy; exploration by chance."""
    rng = np.random.RandomState(2)
    s = tf.placeholder(tf.float32, [32, 6])
    logits = tf.layers.dense(tf.layers.dense(s, 16, tf.nn.tanh), 4)
    a = tf.multinomial(logits, 1)[:, 0]
    a = tf.where(tf.random_uniform([32]) < 0.1, tf.random_uniform([32], 0, 4, tf.int64), a)
    reward = tf.stop_gradient(tf.cast(tf.equal(a, tf.argmax(s[:, :4], 1)), tf.float32))
    log = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=a, logits=logits)
    entropy = tf.reduce_mean(tf.reduce_sum(-tf.nn.softmax(logits) * tf.nn.log_softmax(logits), 1))
    train = tf.train.AdamOptimizer(0.05).minimize(tf.reduce_mean(log * (reward - 0.25)) - 0.01 * entropy)
    return 1.0 - tf.reduce_mean(reward), train, feeder([s], [rng.randn(256, 6).astype(np.float32)]), {"entropy": entropy}


@model
def ctc(run):
    """Speech in miniature: a recurrent net, CTC loss over sparse labels, decoded greedily and by beam, the edit distance."""
    rng = np.random.RandomState(3)
    words = rng.randint(0, 5, (64, 3))
    xs = np.repeat(np.eye(5)[words], 3, 1).astype(np.float32) + 0.1 * rng.randn(64, 9, 5).astype(np.float32)
    x, y = tf.placeholder(tf.float32, [16, 9, 5]), tf.sparse_placeholder(tf.int32, [16, 3])
    outs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(16), x, dtype=tf.float32)
    logits, n = tf.transpose(tf.layers.dense(outs, 6), [1, 0, 2]), tf.fill([16], 9)
    loss = tf.reduce_mean(tf.nn.ctc_loss(y, logits, n))
    train = tf.train.AdamOptimizer(0.02).minimize(loss)
    greedy, beam = tf.nn.ctc_greedy_decoder(logits, n)[0][0], tf.nn.ctc_beam_search_decoder(logits, n, beam_width=4)[1]
    wrong = tf.reduce_mean(tf.edit_distance(tf.cast(greedy, tf.int32), y))
    at = feeder(["x", "y"], [xs, words], 16)

    def feed(step):
        a, b = at(step).values()
        where = np.array([[i, j] for i in range(16) for j in range(3)], np.int64)
        return {x: a, y: (where, b.reshape(-1).astype(np.int32), [16, 3])}
    return loss, train, feed, {"wrong": wrong, "beam": beam}


@model
def crf(run):
    """A chain's forward algorithm as a scan with logsumexp."""
    rng = np.random.RandomState(4)
    tags = rng.randint(0, 4, (64, 7))
    xs = (np.eye(4)[tags] + 0.4 * rng.randn(64, 7, 4)).astype(np.float32)
    x, y = tf.placeholder(tf.float32, [16, 7, 4]), tf.placeholder(tf.int32, [16, 7])
    emit, pair = tf.layers.dense(x, 4), tf.get_variable("pair", [4, 4])
    alphas = tf.scan(lambda a, e: tf.reduce_logsumexp(a[:, :, None] + pair[None], 1) + e, tf.transpose(emit, [1, 0, 2]), initializer=tf.zeros([16, 4]))
    score = tf.reduce_sum(emit * tf.one_hot(y, 4), [1, 2]) + tf.reduce_sum(tf.gather_nd(pair, tf.stack([y[:, :-1], y[:, 1:]], -1)), 1)
    loss = tf.reduce_mean(tf.reduce_logsumexp(alphas[-1], 1) - score)
    return loss, tf.train.AdamOptimizer(0.05).minimize(loss), feeder([x, y], [xs, tags], 16), {"pair": pair}


@model
def factorization(run):
    """Ratings from sparse features: a factorization machine on sparse matrix products, with updates of rows by hand."""
    rng = np.random.RandomState(5)
    users, items = rng.randint(0, 30, 256), rng.randint(0, 20, 256)
    ys = (np.sin(users) * np.cos(items)).astype(np.float32)
    u, i, y = tf.placeholder(tf.int64, [32]), tf.placeholder(tf.int64, [32]), tf.placeholder(tf.float32, [32])
    rows = tf.range(32, dtype=tf.int64)
    where = tf.reshape(tf.stack([tf.stack([rows, u], 1), tf.stack([rows, i + 30], 1)], 1), [-1, 2])
    x = tf.SparseTensor(where, tf.ones([64]), [32, 50])
    w, v = tf.get_variable("w", [50, 1]), tf.get_variable("v", [50, 6])
    a = tf.sparse_tensor_dense_matmul(x, v)
    out = tf.sparse_tensor_dense_matmul(x, w)[:, 0] + 0.5 * tf.reduce_sum(tf.square(a) - tf.sparse_tensor_dense_matmul(tf.square(x), tf.square(v)), 1)
    loss = tf.reduce_mean(tf.square(out - y)) + 1e-4 * tf.nn.l2_loss(v)
    seen = tf.get_variable("seen", [30], tf.int32, tf.zeros_initializer(), trainable=False)
    last = tf.get_variable("last", [30, 6], trainable=False, initializer=tf.zeros_initializer())
    ones, _, counts = tf.unique_with_counts(u)
    with tf.control_dependencies([tf.scatter_add(seen, ones, counts), tf.scatter_update(last, ones, tf.gather(v, ones))]):
        train = tf.train.AdagradOptimizer(0.3).minimize(loss)
    return loss, train, feeder([u, i, y], [users, items, ys]), {"seen": seen, "last": last}


@model
def kmeans(run):
    """Centres moved by segment sums; no gradients at all."""
    rng = np.random.RandomState(6)
    xs = (rng.randn(4, 3)[rng.randint(0, 4, 256)] * 3 + 0.3 * rng.randn(256, 3)).astype(np.float32)
    x = tf.placeholder(tf.float32, [32, 3])
    centre = tf.get_variable("centre", [4, 3], initializer=tf.random_normal_initializer())
    far = tf.reduce_sum(tf.squared_difference(x[:, None], centre[None]), 2)
    near = tf.argmin(far, 1)
    sums, counts = tf.unsorted_segment_sum(x, near, 4), tf.unsorted_segment_sum(tf.ones([32]), near, 4)
    means = tf.where(counts > 0, sums / tf.maximum(counts, 1)[:, None], centre)
    train = tf.assign_add(centre, 0.2 * (means - centre))
    return tf.reduce_mean(tf.reduce_min(far, 1)), train, feeder([x], [xs]), {"centre": centre}


@model
def characters(run):
    """A recurrent net whose state stays in variables between steps, trained on a text."""
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog and runs away. " * 8, np.uint8)
    x, y = tf.placeholder(tf.int32, [4, 8]), tf.placeholder(tf.int32, [4, 8])
    cell = tf.nn.rnn_cell.LSTMCell(16)
    state = [tf.get_variable(n, [4, 16], initializer=tf.zeros_initializer(), trainable=False) for n in "ch"]
    outs, new = tf.nn.dynamic_rnn(cell, tf.one_hot(x, 128), initial_state=tf.nn.rnn_cell.LSTMStateTuple(*[tf.identity(s) for s in state]))
    logits = tf.layers.dense(outs, 128)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    grads = tf.train.AdamOptimizer(0.02).minimize(loss)
    with tf.control_dependencies([grads]):
        train = tf.group(*[tf.assign(s, n) for s, n in zip(state, new)])
    rows = np.stack([text[i * 100:i * 100 + 100] for i in range(4)]).astype(np.int32)

    def feed(step):
        at = step * 8 % 88
        return {x: rows[:, at:at + 8], y: rows[:, at + 1:at + 9]}
    return loss, train, feed, {"state": state}


@model
def second_order(run):
    """Newton's steps: hessians, and a gradient's norm as a penalty."""
    rng = np.random.RandomState(7)
    xs = rng.randn(256, 4).astype(np.float32)
    ys = (xs @ rng.randn(4) > 0).astype(np.float32)
    x, y = tf.placeholder(tf.float32, [32, 4]), tf.placeholder(tf.float32, [32])
    w = tf.get_variable("w", [4], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=tf.linalg.matvec(x, w))) + 0.01 * tf.nn.l2_loss(w)
    grad, hess = tf.gradients(loss, w)[0], tf.hessians(loss, w)[0]
    penalty = tf.gradients(tf.norm(grad + 1e-3), w)[0]
    move = tf.linalg.solve(hess + 0.05 * tf.eye(4), grad[:, None])[:, 0]
    return loss, tf.assign_sub(w, 0.5 * move + 0.01 * penalty), feeder([x, y], [xs, ys]), {"w": w, "hessian": hess}


@model
def doubles(run):
    """float64 throughout, complex numbers, an inverse and a decomposition."""
    rng = np.random.RandomState(8)
    xs = rng.randn(256, 8)
    x = tf.placeholder(tf.float64, [32, 8])
    w = tf.get_variable("w", [8, 4], tf.float64, tf.random_normal_initializer(dtype=tf.float64))
    wave = tf.abs(tf.fft(tf.cast(x, tf.complex128)))
    cov = tf.matmul(x, x, transpose_a=True) / 32.0 + tf.eye(8, dtype=tf.float64)
    white = tf.matmul(x, tf.linalg.inv(tf.cholesky(cov)), transpose_b=True)
    out = tf.matmul(tf.matmul(white, w), w, transpose_b=True)
    loss = tf.reduce_mean(tf.square(out - white)) + 0.001 * tf.reduce_mean(tf.square(tf.matmul(wave, w)))
    return loss, tf.train.MomentumOptimizer(tf.constant(0.05, tf.float64), 0.5).minimize(loss), feeder([x], [xs]), {"w": w, "det": tf.linalg.slogdet(cov)[1]}


@model
def mixed(run):
    """Variables in float32, maths in half and bfloat16, a loss scale that adapts."""
    rng = np.random.RandomState(9)
    xs = rng.randn(256, 6).astype(np.float32)
    ys = (xs[:, 0] * xs[:, 1] > 0).astype(np.int32)
    x, y = tf.placeholder(tf.float32, [32, 6]), tf.placeholder(tf.int32, [32])

    def getter(getter, *args, dtype=None, **kw):
        v = getter(*args, dtype=tf.float32, **kw)
        return tf.cast(v, dtype) if dtype != tf.float32 else v
    with tf.variable_scope("half", custom_getter=getter):
        h = tf.cast(x, tf.float16)
        for n, (i, o) in enumerate([(6, 16), (16, 2)]):
            h = tf.matmul(h, tf.get_variable(f"w{n}", [i, o], tf.float16)) + tf.get_variable(f"b{n}", [o], tf.float16, tf.zeros_initializer())
            h = tf.nn.tanh(h) if o != 2 else h
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.cast(h, tf.float32)))
    scale = tf.get_variable("scale", [], initializer=tf.constant_initializer(64.0), trainable=False)
    opt = tf.train.AdamOptimizer(0.03)
    pairs = [(g / scale, v) for g, v in opt.compute_gradients(loss * scale)]
    fine = tf.reduce_all([tf.reduce_all(tf.is_finite(g)) for g, _ in pairs])
    train = tf.cond(fine, lambda: tf.group(opt.apply_gradients(pairs), tf.assign(scale, scale * 1.1)), lambda: tf.group(tf.assign(scale, scale / 2)))
    return loss, train, feeder([x, y], [xs, ys]), {"scale": scale}


@model
def functions(run):
    """tf.function in a graph, a gradient of one's own, Defun, checks and prints along the way."""
    rng = np.random.RandomState(10)
    xs = rng.randn(256, 6).astype(np.float32)
    x = tf.placeholder(tf.float32, [32, 6])
    w = tf.get_variable("w", [6, 6], use_resource=True)

    @tf.custom_gradient
    def clipped(v):
        return v, lambda g: tf.clip_by_value(g, -0.01, 0.01)

    @tf.function
    def layer(v, k):
        if tf.reduce_sum(v) > 0:  # autograph
            v = tf.tanh(tf.matmul(v, k))
        else:
            v = tf.sin(tf.matmul(v, k))
        for _ in tf.range(2):
            v = v + 0.1 * tf.matmul(v, k)
        return v
    h = clipped(layer(x, tf.identity(w)))  # TensorFlow cannot place a body that uses a ps's handle itself
    h = tf.check_numerics(h, "h")
    with tf.control_dependencies([tf.assert_rank(h, 2), tf.assert_less(tf.reduce_max(tf.abs(h)), 1e6)]):
        h = tf.identity(h)
    loss = tf.reduce_mean(tf.square(h - tf.roll(x, 1, 1)))
    return loss, tf.train.AdamOptimizer(0.02).minimize(loss), feeder([x], [xs]), {"w": w}


@model
def text(run):
    """Sentences as strings: split, hashed, looked up in tables (one read from a file), bags of words."""
    import os
    words = ["good", "bad", "fine", "poor", "great", "the", "a", "film", "book", "was"]
    with open(os.path.join(run.folder, "words.txt"), "w") as f:
        f.write("\n".join(words) + "\n")
    rng = np.random.RandomState(11)
    lines, ys = [], []
    for _ in range(256):
        pick = rng.choice(words + ["odd"], 5)
        lines.append(" ".join(pick).upper() if rng.rand() < 0.3 else " ".join(pick))
        ys.append(sum(p in ("good", "fine", "great") for p in pick) > sum(p in ("bad", "poor") for p in pick))
    s, y = tf.placeholder(tf.string, [None]), tf.placeholder(tf.float32, [None])
    parts = tf.string_split(tf.strings.regex_replace(tf.strings.lower(s), "[^a-z ]", ""))
    table = tf.lookup.StaticVocabularyTable(tf.lookup.TextFileInitializer(os.path.join(run.folder, "words.txt"), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64,
                                                                          tf.lookup.TextFileIndex.LINE_NUMBER), 2)
    ids = tf.SparseTensor(parts.indices, table.lookup(parts.values), parts.dense_shape)
    hashed = tf.SparseTensor(parts.indices, tf.string_to_hash_bucket_fast(parts.values, 16), parts.dense_shape)
    a = tf.nn.embedding_lookup_sparse(tf.get_variable("a", [12, 4]), ids, None, combiner="sum")
    b = tf.nn.safe_embedding_lookup_sparse([tf.get_variable("b", [16, 4])], hashed, combiner="mean")
    counts = tf.reduce_sum(tf.one_hot(tf.sparse_tensor_to_dense(ids, -1), 12), 1)
    logits = tf.layers.dense(tf.concat([a, b, counts], 1), 1)[:, 0]
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))
    return loss, tf.train.AdamOptimizer(0.05).minimize(loss), feeder([s, y], [np.array(lines, object), np.array(ys, np.float32)]), {"logits": logits}


VARIANTS = dict(VARIANTS)


def program(run, kind):
    with run.device():
        loss, train, feed, values = MODELS[kind](run)
    return run.train(loss, train, feed, values=values)


if __name__ == "__main__":
    main()
