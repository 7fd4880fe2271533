"""Word vectors: skip-gram pairs with sampled softmax or NCE loss, and bags of words with weights; the table whole or in pieces."""
from trainer import feeder, main, np, tf

VARIANTS = {
    "sampled": {"kind": "sampled"},
    "nce": {"kind": "nce"},
    "nce-parts": {"kind": "nce", "parts": 2},
    "sampled-resource": {"kind": "sampled", "resource": True, "parts": 3},
    "bags": {"kind": "bags"},
    "bags-sqrtn": {"kind": "bags", "combiner": "sqrtn", "parts": 2, "resource": True},
    "unigram": {"kind": "unigram"},
}
QUICK = {"sampled", "nce-parts", "bags"}
WORDS, DIM = 100, 12


def program(run, kind="sampled", parts=1, resource=False, combiner="mean"):
    rng = np.random.RandomState(7)
    centre = rng.randint(0, WORDS, 512)
    context = (centre + rng.randint(1, 4, 512)) % WORDS
    part = tf.fixed_size_partitioner(parts) if parts > 1 else None
    with run.device(), tf.variable_scope("words", use_resource=resource, initializer=tf.random_uniform_initializer(-0.5, 0.5)):
        table = tf.get_variable("table", [WORDS, DIM], partitioner=part)
        out = tf.get_variable("out", [WORDS, DIM], partitioner=part, initializer=tf.truncated_normal_initializer(stddev=0.3))
        bias = tf.get_variable("bias", [WORDS], partitioner=part, initializer=tf.zeros_initializer())
        y = tf.placeholder(tf.int64, [None, 1])
        if kind == "bags":
            ids, weights = tf.sparse_placeholder(tf.int64), tf.sparse_placeholder(tf.float32)
            h = tf.nn.embedding_lookup_sparse(table, ids, weights, partition_strategy="div", combiner=combiner)
        else:
            x = tf.placeholder(tf.int64, [None])
            h = tf.nn.embedding_lookup(table, x, partition_strategy="div", max_norm=2.0 if kind == "nce" else None)
        sampled = None
        if kind == "unigram":
            counts = list(range(1, WORDS + 1))
            sampled = tf.nn.fixed_unigram_candidate_sampler(y, 1, 16, True, WORDS, unigrams=counts, distortion=0.75)
        f = tf.nn.nce_loss if kind in ("nce", "unigram") else tf.nn.sampled_softmax_loss
        loss = tf.reduce_mean(f(out, bias, y, h, 16, WORDS, sampled_values=sampled, partition_strategy="div"))
        train = tf.train.AdagradOptimizer(0.5).minimize(loss)
        whole = tf.convert_to_tensor(table)
        near = tf.nn.top_k(tf.matmul(tf.nn.l2_normalize(whole[:5], 1), tf.nn.l2_normalize(whole, 1), transpose_b=True), 1)
    if kind == "bags":
        at = feeder(["x", "y"], [np.stack([centre, (centre + 1) % WORDS, centre], 1), context])

        def feed(step):
            rows, y_ = at(step).values()
            where = np.array([[i, j] for i in range(len(rows)) for j in range(1 + i % 3)], np.int64)
            values = rows[tuple(where.T)]
            shape = [len(rows), 3]
            return {ids: (where, values, shape), weights: (where, 0.5 + (values % 3).astype(np.float32), shape), y: y_[:, None]}
    else:
        feed = feeder([x, y], [centre, context[:, None]])
    return run.train(loss, train, feed, values={"table": whole, "near": near.indices})


if __name__ == "__main__":
    main()
