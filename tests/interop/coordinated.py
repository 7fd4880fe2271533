"""Larger programs for a coordinator, one process each (TensorFlow keeps one coordinator per process): coordinated.py CLUSTER_JSON OUT.json MODE[,MODE…] [ARG…]

TASKS_HERE=worker/0,ps/1 in the environment: these tasks of TensorFlow are part of this process, as in the public tutorial (processes less to start).
What a program ends with goes to OUT.json, for comparison with the same on TensorFlow's own ps."""
import contextlib
import functools
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import tensorflow as tf  # noqa: E402

SPEC, OUT, HERE = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]), []
partitioners = tf.distribute.experimental.partitioners
PARTITIONER = [partitioners.MinSizePartitioner(min_shard_bytes=64, max_shards=len(SPEC["ps"]))]  # the last one is asked


@functools.cache
def strategy():
    cluster = tf.train.ClusterSpec(SPEC)
    for task in filter(None, os.environ.get("TASKS_HERE", "").split(",")):
        job, index = task.split("/")
        HERE.append(tf.distribute.Server(cluster, job_name=job, task_index=int(index)))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc", task_type="chief", task_id=0)
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=lambda *a, **k: PARTITIONER[-1](*a, **k))


@functools.cache
def coordination():
    return tf.distribute.coordinator.ClusterCoordinator(strategy())


def whole(v):
    return tf.concat([p.read_value() for p in v.variables], 0) if hasattr(v, "variables") else v.read_value()


def numbers(v):
    return whole(v).numpy().tolist()


def parts(v):
    return list(v.variables) if hasattr(v, "variables") else [v]


@contextlib.contextmanager
def divided_by(partitioner):
    PARTITIONER.append(partitioner)
    yield
    PARTITIONER.pop()


# ---- what any TensorFlow 2 can, without Keras -----------------------------------------------------------------------------


def loop(folder):
    """A linear model on the ps, steps scheduled on the workers, a sharded embedding with sparse updates, a checkpoint saved and restored by the ps."""
    coordinator = coordination()
    with strategy().scope(), divided_by(partitioners.FixedShardsPartitioner(len(SPEC["ps"]))):
        w = tf.Variable(tf.zeros([4, 1]), name="w")
        table = tf.Variable(tf.reshape(tf.range(40, dtype=tf.float32), [10, 4]) / 40, name="table")
        count = tf.Variable(0, dtype=tf.int64, name="count")

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            x = tf.nn.embedding_lookup(table, tf.constant([1, 3, 3, 9]))
            k = tf.concat([tf.identity(v) for v in parts(w)], 0)
            loss = tf.reduce_mean((x @ k - tf.constant([[1.0], [2.0], [3.0], [4.0]])) ** 2)
        variables = parts(w) + parts(table)
        for v, g in zip(variables, tape.gradient(loss, variables)):
            if isinstance(g, tf.IndexedSlices):
                v.scatter_sub(tf.IndexedSlices(0.05 * g.values, g.indices))
            else:
                v.assign_sub(0.05 * g)
        count.assign_add(1)
        return loss

    for _ in range(20):
        last = coordinator.schedule(step)
    coordinator.join()
    result = {"loss": float(last.fetch()), "w": numbers(w), "table": numbers(table), "count": int(count.numpy())}
    saved = tf.train.Checkpoint(w=w, table=table, count=count)
    path = saved.save(folder + "/loop")
    count.assign(-1)
    for p in parts(table):
        p.assign(tf.zeros_like(p))
    saved.restore(path)
    return result | {"restored": numbers(table), "restored_count": int(count.numpy())}


class RMSprop:
    """As Keras 2 has it; Keras 3's optimizers know nothing of this strategy."""

    def __init__(self, rate, variables):
        self.rate, self.slots = rate, [tf.Variable(tf.zeros(v.shape)) for v in variables]

    def apply_gradients(self, pairs):
        for m, (g, v) in zip(self.slots, pairs):
            g = tf.convert_to_tensor(g)
            m.assign(0.9 * m + 0.1 * g ** 2)
            v.assign_sub(self.rate * g * tf.math.rsqrt(m + 1e-7))


class Mean(tf.Module):
    """A metric: workers add, the coordinator reads and resets."""

    def __init__(self):
        super().__init__()
        self.total, self.n = tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)

    def update(self, values):
        self.total.assign_add(tf.reduce_sum(values))
        self.n.assign_add(tf.size(values, tf.int64))

    def update_state(self, label, guess):  # as Keras calls it, for accuracies
        self.update(tf.cast(tf.cast(label, tf.int64) == tf.cast(guess, tf.int64), tf.float32))

    def result(self):
        return float(self.total.numpy()) / max(int(self.n.numpy()), 1)

    def reset_states(self):
        self.total.assign(0.0)
        self.n.assign(0)

    def read(self):
        mean = self.result()
        self.reset_states()
        return mean


def plain(folder):
    """Words looked up in a table that every worker has, datasets by worker, each kind of partitioner, a metric, an evaluation on the workers, errors that a closure raises,
    managed checkpoints: some kept, one gone back to, one that makes up a part of a model only."""
    s, coordinator = strategy(), coordination()
    words = ["red", "green", "blue", "white", "black"]
    result = {"shards": {}, "loss": [], "accuracy": []}
    with s.scope():
        kinds = {"min": partitioners.MinSizePartitioner(min_shard_bytes=80, max_shards=4), "max": partitioners.MaxSizePartitioner(max_shard_bytes=40),
                 "fixed": partitioners.FixedShardsPartitioner(3)}
        made = {}
        for name, kind in kinds.items():
            with divided_by(kind):
                made[name] = tf.Variable(tf.reshape(tf.range(40.0), [10, 4]), name=name)
            result["shards"][name] = [[int(p.shape[0]), p.device] for p in parts(made[name])]
        table = tf.Variable(tf.reshape(tf.cos(tf.range(48.0)), [6, 8]), name="embedding")
        w = tf.Variable(tf.reshape(tf.sin(tf.range(8.0)), [8, 1]), name="w")
        slots = [tf.Variable(tf.zeros(p.shape)) for p in parts(table) + parts(w)]
        lookup = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.constant(words), tf.range(5, dtype=tf.int64)), 5)
        right = Mean()
        seen = tf.Variable(0, dtype=tf.int64)

    def data(_=None):
        feature = tf.constant([words[i * 3 % 5] if i % 4 else "none of them" for i in range(20)])
        label = tf.constant([[float(i % 4 == 0)] for i in range(20)])
        return tf.data.Dataset.from_tensor_slices((feature, label)).map(lambda f, l: (lookup.lookup(f), l)).repeat().batch(10)

    def logits(ids):
        return tf.nn.embedding_lookup(table, ids) @ tf.concat([tf.identity(p) for p in parts(w)], 0)

    @tf.function
    def step(iterator):
        def replica(ids, label):
            with tf.GradientTape() as tape:
                z = logits(ids)
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(label, z))
            variables = parts(table) + parts(w)
            for v, m, g in zip(variables, slots, tape.gradient(loss, variables)):
                m.assign(0.9 * m + 0.1 * tf.convert_to_tensor(g) ** 2)
                v.assign_sub(0.1 * tf.convert_to_tensor(g) * tf.math.rsqrt(m + 1e-4))
            right.update(tf.cast((z > 0) == (label > 0), tf.float32))
            seen.assign_add(1)
            return loss

        return s.run(replica, args=next(iterator))

    @tf.function
    def check(iterator):
        ids, label = next(iterator)
        right.update(tf.cast((logits(ids) > 0) == (label > 0), tf.float32))

    saved = tf.train.Checkpoint(table=table, w=w, slots=slots, seen=seen, sharded=made)
    manager = tf.train.CheckpointManager(saved, folder + "/plain", max_to_keep=2)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: s.distribute_datasets_from_function(data)))
    for _ in range(3):
        for _ in range(4):
            last = coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        result["loss"].append(float(last.fetch()))
        result["accuracy"].append(right.read())
        manager.save()
    for _ in range(2):
        coordinator.schedule(check, args=(iterator,))
    coordinator.join()
    result |= {"checked": right.read(), "table": numbers(table), "w": numbers(w), "slots": [numbers(m) for m in slots]}

    @tf.function
    def wrong():
        tf.debugging.assert_less(seen.read_value(), tf.constant(0, tf.int64))

    try:
        coordinator.schedule(wrong)
        coordinator.join()
    except tf.errors.OpError as e:
        result["error"] = [type(e).__name__, e.error_code]
    early, late = manager.checkpoints
    result["kept"] = [pathlib.Path(p).name for p in manager.checkpoints]
    saved.restore(early).assert_consumed()
    result["early"] = [int(seen.numpy()), numbers(table)]
    saved.restore(late)
    result["late"] = [int(seen.numpy()), numbers(table), {name: numbers(v) for name, v in made.items()}]
    with s.scope():
        other = tf.Variable(tf.zeros([6, 8]), name="other")
    tf.train.Checkpoint(table=other).restore(late).expect_partial()
    return result | {"part": numbers(other)}


# ---- Keras fit ------------------------------------------------------------------------------------------------------------


def rows(_):
    x = tf.random.stateless_uniform([64, 10], [1, 2])
    y = tf.cast(tf.reduce_sum(x, 1) > 5, tf.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16)


class Interrupt(tf.keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt("as a machine that goes away")


def fit(folder, *_):
    """Ten steps at a time, the usual callbacks; interrupted in epoch 2 and gone on with from the backup; evaluated on the worker; weights saved and loaded."""
    folder = pathlib.Path(folder)
    tf.keras.utils.set_random_seed(1)
    with strategy().scope():
        dense = tf.keras.layers.Dense
        model = tf.keras.Sequential([dense(8, activation="relu", input_shape=(10,)), tf.keras.layers.BatchNormalization(), dense(1, activation="sigmoid")])
        model.compile(tf.keras.optimizers.RMSprop(0.01), loss="binary_crossentropy", metrics=["accuracy", tf.keras.metrics.AUC(num_thresholds=11)], steps_per_execution=10)
    data = tf.keras.utils.experimental.DatasetCreator(rows)
    keras = tf.keras.callbacks

    def callbacks():
        return [keras.TensorBoard(str(folder / "logs")), keras.ModelCheckpoint(str(folder / "ckpt-{epoch}"), save_weights_only=True), keras.BackupAndRestore(str(folder / "backup"))]

    try:
        model.fit(data, epochs=4, steps_per_epoch=20, verbose=0, callbacks=[*callbacks(), Interrupt(2)])
    except KeyboardInterrupt:
        pass
    history = model.fit(data, epochs=4, steps_per_epoch=20, verbose=0, callbacks=callbacks())
    score = model.evaluate(data, steps=10, verbose=0)
    weights = [w.tolist() for w in model.get_weights()]
    model.load_weights(str(folder / "ckpt-1")).expect_partial()
    early = [w.tolist() for w in model.get_weights()]
    model.load_weights(str(folder / "ckpt-4")).expect_partial()
    again = [w.tolist() for w in model.get_weights()]
    names = sorted(p.name for p in folder.glob("ckpt-*.index"))
    return {"history": history.history, "epochs": history.epoch, "score": score, "weights": weights, "early": early, "again": again, "names": names,
            "events": len(list(folder.glob("logs/train/events*")))}


# ---- every optimizer ------------------------------------------------------------------------------------------------------


def one_step(s, optimizer, w, table, variables):
    def replica():
        with tf.GradientTape() as tape:
            x = tf.nn.embedding_lookup(table, tf.constant([1, 3, 3, 9]))
            loss = tf.reduce_mean((x @ tf.concat([tf.identity(p) for p in parts(w)], 0) - 1.0) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return tf.function(lambda: s.run(replica))


def optimizers(*_):
    k = tf.keras.optimizers
    made = {
        "Adadelta": lambda: k.Adadelta(0.1), "Adafactor": lambda: k.Adafactor(0.1), "Adagrad": lambda: k.Adagrad(0.1), "Adam": lambda: k.Adam(0.1),
        "Adam amsgrad": lambda: k.Adam(0.1, amsgrad=True, clipnorm=0.5), "AdamW": lambda: k.AdamW(0.1, weight_decay=0.01), "Adamax": lambda: k.Adamax(0.1),
        "Ftrl": lambda: k.Ftrl(0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.01), "Lion": lambda: k.Lion(0.1), "Nadam": lambda: k.Nadam(0.1),
        "RMSprop": lambda: k.RMSprop(0.1), "RMSprop centered": lambda: k.RMSprop(0.1, momentum=0.9, centered=True), "SGD": lambda: k.SGD(0.1),
        "SGD nesterov": lambda: k.SGD(0.1, momentum=0.9, nesterov=True, use_ema=True),
        "decayed": lambda: k.SGD(k.schedules.ExponentialDecay(0.1, 2, 0.5), global_clipnorm=1.0),
    } if hasattr(k, "legacy") else {"Adam": lambda: k.Adam(0.1)}
    if hasattr(k, "legacy"):
        old = k.legacy
        made |= {"legacy " + name: (lambda c=getattr(old, name): c(0.1)) for name in ("Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "RMSprop", "SGD")}
        made |= {"legacy Adam amsgrad": lambda: old.Adam(0.1, amsgrad=True), "legacy RMSprop centered": lambda: old.RMSprop(0.1, momentum=0.9, centered=True),
                 "legacy SGD nesterov": lambda: old.SGD(0.1, momentum=0.9, nesterov=True)}
    s = strategy()
    coordinator = coordination()
    result = {}
    for name, make in made.items():
        try:
            with s.scope():
                w = tf.Variable(tf.reshape(tf.range(8, dtype=tf.float32), [4, 2]) / 8 - 0.4, name=f"w{len(result)}")
                table = tf.Variable(tf.reshape(tf.range(40, dtype=tf.float32), [10, 4]) / 40 - 0.5, name=f"table{len(result)}")
                optimizer = make()
                variables = parts(w) + parts(table)
                if hasattr(optimizer, "build"):
                    optimizer.build(variables)

            step = one_step(s, optimizer, w, table, variables)
            for _ in range(4):
                last = coordinator.schedule(step)
            coordinator.join()
            result[name] = [float(last.fetch()), numbers(w), numbers(table)]
        except Exception as e:  # the others are worth knowing too
            result[name] = [type(e).__name__, [], []]
            print(name, e, file=sys.stderr)
    return result


# ---- the public tutorial's pattern ----------------------------------------------------------------------------------------


def tutorial(*_):
    """Words looked up in a table, a sharded embedding, RMSprop, an accuracy metric that is read and reset by epoch, an evaluation scheduled on the workers."""
    words = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
    tf.keras.utils.set_random_seed(2)
    s = strategy()
    coordinator = coordination()
    with s.scope():
        lookup = tf.keras.layers.StringLookup(vocabulary=words, mask_token=None)
        yes = tf.keras.layers.StringLookup(vocabulary=["yes", "no"], num_oov_indices=0, mask_token=None)
        table = tf.Variable(tf.random.stateless_uniform([len(words) + 1, 16], [3, 4]), name="embedding")
        w = tf.Variable(tf.random.stateless_uniform([16, 1], [5, 6]) - 0.5, name="w")
        keras2 = tf.__version__.startswith("2.15")
        optimizer = tf.keras.optimizers.legacy.RMSprop(0.1) if keras2 else RMSprop(0.1, parts(table) + parts(w))
        accuracy = tf.keras.metrics.BinaryAccuracy() if keras2 else Mean()
        hits = tf.Variable(0.0, aggregation=tf.VariableAggregation.NONE)

    def data(_=None):
        feature = tf.constant([words[i * 3 % 7] for i in range(32)])
        label = tf.constant([["yes"] if i * 3 % 7 < 3 else ["no"] for i in range(32)])
        return tf.data.Dataset.from_tensor_slices((feature, label)).map(lambda f, l: (lookup(f), yes(l))).repeat().batch(8)

    @tf.function
    def per_worker():
        return s.distribute_datasets_from_function(data)

    def logits(ids):
        return tf.reshape(tf.nn.embedding_lookup(table, ids), [-1, 16]) @ (tf.concat([tf.identity(p) for p in parts(w)], 0))

    @tf.function
    def step(iterator):
        def replica(ids, label):
            with tf.GradientTape() as tape:
                z = logits(ids)
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(label, tf.float32), z))
            variables = parts(table) + parts(w)
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
            accuracy.update_state(label, tf.cast(z > 0, tf.int64))
            return loss

        return s.run(replica, args=next(iterator))

    @tf.function
    def check(iterator):
        ids, label = next(iterator)
        hits.assign_add(tf.reduce_sum(tf.cast((logits(ids) > 0) == (label > 0), tf.float32)))

    iterator = iter(coordinator.create_per_worker_dataset(per_worker))
    result = {"accuracy": [], "loss": []}
    for _ in range(3):
        accuracy.reset_states()
        for _ in range(5):
            last = coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        result["accuracy"].append(float(accuracy.result()))
        result["loss"].append(float(last.fetch()))
    for _ in range(4):
        coordinator.schedule(check, args=(iterator,))
    coordinator.join()
    return result | {"hits": float(hits.numpy()), "table": numbers(table), "w": numbers(w)}


# ---- long and broken runs -------------------------------------------------------------------------------------------------


def count(steps, folder, pause):
    """Counts on the ps, saves every tenth join, goes on from what was saved. A `mark` says that training is under way. An error is part of the result."""
    steps, pause, folder = int(steps), float(pause), pathlib.Path(folder)
    s = strategy()
    coordinator = coordination()
    with s.scope():
        n = tf.Variable(0, dtype=tf.int64)
        w = tf.Variable(0.0)
    saved = tf.train.Checkpoint(n=n, w=w)
    manager = tf.train.CheckpointManager(saved, str(folder), max_to_keep=2)
    manager.restore_or_initialize()
    began = int(n.numpy())

    @tf.function
    def step():
        w.assign_add(0.5)
        return n.assign_add(1)

    error = None
    try:
        while int(n.numpy()) < steps:
            for _ in range(10):
                coordinator.schedule(step)
            coordinator.join()
            if int(n.numpy()) % 100 == 0 or pause:
                manager.save()
            (folder / "mark").write_text(str(int(n.numpy())))
            time.sleep(pause)
        end = int(n.numpy())
    except Exception as e:
        error, end = type(e).__name__, -1
        print(error, e, file=sys.stderr)
    return {"began": began, "end": end, "error": error, "w": float(w.numpy()) if not error else None}


def steady(steps, folder):
    """Many quick steps, a fetched result each hundred; also functions and variables that come and go."""
    steps, folder = int(steps), pathlib.Path(folder)
    s = strategy()
    coordinator = coordination()
    with s.scope():
        n = tf.Variable(0, dtype=tf.int64)
        w = tf.Variable(tf.zeros([1000]))

    @tf.function
    def step():
        for p in parts(w):
            p.assign_add(tf.ones_like(p))
        return n.assign_add(1)

    for i in range(0, steps, 100):
        for _ in range(100):
            last = coordinator.schedule(step)
        coordinator.join()
        last.fetch()
        with s.scope():
            passing = tf.Variable(tf.zeros([1000]))  # dropped: so is its handle
        for p in parts(passing):
            p.assign_add(tf.ones_like(p))
        del passing, p
        (folder / "mark").write_text(str(i + 100))
    return {"end": int(n.numpy()), "w": numbers(w)[999]}


if __name__ == "__main__":
    modes = {"loop": loop, "plain": plain, "fit": fit, "optimizers": optimizers, "tutorial": tutorial, "count": count, "steady": steady}
    result = {mode: modes[mode](*sys.argv[4:]) for mode in sys.argv[3].split(",")}
    OUT.write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the coordinator's threads would complain about tasks that end before it
