"""Several workers train one model, a client thread and a graph for each: asynchronously, or with SyncReplicasOptimizer.

As a program of its own it is one of these workers: start it once for every --task_index.
"""
import threading

from trainer import SEED, digits, feeder, main, tf

VARIANTS = {"sync": {}, "sync-backup": {"backup": 1}, "async": {"sync": False}, "sync-resource": {"resource": True}}
QUICK = {"sync", "async"}
NOISY = {"async", "sync", "sync-backup", "sync-resource"}
START = threading.Lock()  # building graphs is not for several threads at once


def worker(run, task, sync, backup, resource, losses, ready):
    xs, ys = digits(512)
    with tf.Graph().as_default():
        with START:
            tf.set_random_seed(SEED)
            with run.device(task), tf.variable_scope("model", use_resource=resource):
                x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
                logits = tf.layers.dense(tf.layers.dense(tf.layers.flatten(x), 16, tf.nn.tanh), 10)
                loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
                step = tf.train.get_or_create_global_step()
                opt = tf.train.GradientDescentOptimizer(0.1)
                hooks = [tf.train.StopAtStepHook(last_step=run.steps)]
                if sync:
                    n = len(run.targets)
                    opt = tf.train.SyncReplicasOptimizer(opt, replicas_to_aggregate=max(1, n - backup), total_num_replicas=n)
                train = opt.minimize(loss, global_step=step)
                if sync:
                    hooks.append(opt.make_session_run_hook(task == 0))
        feed = feeder([x, y], [xs[task::2], ys[task::2]])
        if task and 0 in run.tasks:
            ready.wait(60)  # else it would find nothing initialised and sleep for half a minute
        config = run.config(device_filters=["/job:ps", f"/job:worker/task:{task}"])
        with tf.train.MonitoredTrainingSession(run.targets[task], is_chief=task == 0, hooks=hooks, config=config, stop_grace_period_secs=20) as sess:
            ready.set()
            at = 0
            while not sess.should_stop():
                got, now, _ = sess.run([loss, step, train], feed(at))
                losses.append((int(now), float(got)))
                at += 1


def program(run, sync=True, backup=0, resource=False):
    losses, errors, ready = [[] for _ in run.targets], [], threading.Event()

    def safely(task):
        try:
            worker(run, task, sync, backup, resource, losses[task], ready)
        except Exception as e:  # said below, in the thread that called
            errors.append(e)
    threads = [threading.Thread(target=safely, args=(t,)) for t in run.tasks]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return {"loss": [v for _, v in sorted(sum(losses, []))], "values": {}, "steps": [len(v) for v in losses]}


if __name__ == "__main__":
    main()
