"""Wide & deep on tf.feature_column: serialized Examples parsed by ParseExample, every usual kind of column, FTRL for the wide part, Adagrad for the deep one."""
from trainer import batches, main, np, tf

VARIANTS = {"wide-deep": {}, "wide": {"deep": False}, "deep": {"wide": False}, "shared": {"wide": False, "shared": True}, "parts": {"parts": True}}
QUICK = {"wide-deep"}
fc = tf.feature_column
JOBS, TOWNS = ["cook", "clerk", "nurse", "smith"], ["A", "B", "C", "D", "E", "F"]


def people(n=256):
    rng = np.random.RandomState(14)
    out, ys = [], []
    for _ in range(n):
        age, job, towns, hours = rng.uniform(18, 80), rng.randint(4), rng.randint(0, 6, rng.randint(0, 4)), rng.randn(3)
        ys.append(float(np.sin(age / 10) + job * 0.5 + (2 in towns) + hours[0] > 1.2))
        f = {"age": tf.train.Feature(float_list=tf.train.FloatList(value=[age])), "hours": tf.train.Feature(float_list=tf.train.FloatList(value=hours)),
             "job": tf.train.Feature(bytes_list=tf.train.BytesList(value=[JOBS[job].encode()])),
             "towns": tf.train.Feature(bytes_list=tf.train.BytesList(value=[TOWNS[t].encode() for t in towns])),
             "child": tf.train.Feature(int64_list=tf.train.Int64List(value=[rng.randint(5)]))}
        out.append(tf.train.Example(features=tf.train.Features(feature=f)).SerializeToString())
    return np.array(out, object), np.array(ys, np.float32)[:, None]


def program(run, wide=True, deep=True, shared=False, parts=False):
    age, hours = fc.numeric_column("age", normalizer_fn=lambda a: (a - 50.0) / 20.0), fc.numeric_column("hours", shape=[3])
    ages = fc.bucketized_column(fc.numeric_column("age"), [25, 35, 45, 55, 65])
    job = fc.categorical_column_with_vocabulary_list("job", JOBS[:3], num_oov_buckets=1)
    towns = fc.categorical_column_with_hash_bucket("towns", 20)
    child = fc.categorical_column_with_identity("child", 5, default_value=0)
    crossed = fc.crossed_column([ages, "job"], 50)
    wide_columns = [ages, job, towns, crossed, child, hours]
    if shared:
        deep_columns = fc.shared_embedding_columns([towns, fc.categorical_column_with_hash_bucket("job", 20)], 4) + [age, hours]
    else:
        deep_columns = [age, hours, fc.indicator_column(job), fc.embedding_column(towns, 4, combiner="sqrtn"), fc.embedding_column(crossed, 6), fc.indicator_column(child)]
    parsing = fc.make_parse_example_spec([age, *wide_columns, *deep_columns])
    xs, ys = people()
    part = tf.min_max_variable_partitioner(max_partitions=2, min_slice_size=64) if parts else None
    with run.device():
        x, y = tf.placeholder(tf.string, [None]), tf.placeholder(tf.float32, [None, 1])
        features = tf.parse_example(x, parsing)
        logits, trains = 0.0, []
        if wide:
            with tf.variable_scope("wide", partitioner=part):
                logits += fc.linear_model(features, wide_columns, sparse_combiner="sum")
        if deep:
            with tf.variable_scope("deep", partitioner=part):
                h = fc.input_layer(features, deep_columns)
                for n in (16, 8):
                    h = tf.layers.dense(h, n, tf.nn.relu)
                logits += tf.layers.dense(h, 1)
        loss = tf.losses.sigmoid_cross_entropy(y, logits)
        for name, opt in (("wide", tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.001)), ("deep", tf.train.AdagradOptimizer(0.1))):
            if variables := tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, name + "/"):
                trains.append(opt.minimize(loss, var_list=variables))
        auc = tf.metrics.auc(y, tf.sigmoid(logits), num_thresholds=50, summation_method="careful_interpolation")
        train = tf.group(*trains)
    at = batches([xs, ys])
    return run.train(loss, train, lambda s: dict(zip((x, y), at(s))), each={"auc": auc[1]}, values={"logits": logits})


if __name__ == "__main__":
    main()
