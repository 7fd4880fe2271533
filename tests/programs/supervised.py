"""The oldest way: tf.train.Supervisor, which initialises, saves, writes summaries and looks after threads; with SyncReplicasOptimizer's own queue runner too."""
import os

from trainer import SEED, digits, feeder, main, np, tf

VARIANTS = {"plain": {}, "sync": {"sync": True}, "resumed": {"parts": 2}}
QUICK = {"plain"}


def part(run, folder, sync, last, losses):
    xs, ys = digits(256)
    with tf.Graph().as_default():
        tf.set_random_seed(SEED)
        with run.device():
            x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
            h = tf.layers.dense(tf.layers.flatten(x), 16, tf.nn.tanh)
            loss = tf.losses.sparse_softmax_cross_entropy(y, tf.layers.dense(h, 10))
            step = tf.train.get_or_create_global_step()
            opt = tf.train.GradientDescentOptimizer(0.2)
            if sync:
                opt = tf.train.SyncReplicasOptimizer(opt, replicas_to_aggregate=1, total_num_replicas=1)
            train = opt.minimize(loss, global_step=step)
            weights = tf.concat([tf.reshape(v, [-1]) for v in tf.trainable_variables()], 0)
            tf.summary.scalar("loss", loss)
            tf.summary.merge_all()
            kw = {}
            if sync:
                kw = {"local_init_op": opt.chief_init_op, "ready_for_local_init_op": opt.ready_for_local_init_op}
                runner, tokens = opt.get_chief_queue_runner(), opt.get_init_tokens_op()
        sv = tf.train.Supervisor(is_chief=True, logdir=folder, global_step=step, save_model_secs=0, save_summaries_secs=0, summary_op=None, recovery_wait_secs=1, **kw)
        feed = feeder([x, y], [xs, ys])
        with sv.managed_session(run.target, config=run.config()) as sess:
            if sync:
                sv.start_queue_runners(sess, [runner])
                sess.run(tokens)
            at = int(sess.run(step))
            while at < last and not sv.should_stop():
                losses.append(float(sess.run([loss, train], feed(at))[0]))
                at += 1
            got = sess.run([step, weights])
            sv.saver.save(sess, sv.save_path, global_step=step)
    return got


def program(run, sync=False, parts=1):
    folder, losses = os.path.join(run.folder, f"sv-{sync}-{parts}"), []
    for p in range(parts):
        got = part(run, folder, sync, run.steps * (p + 1) // parts, losses)
        if run.ps:
            tf.Session.reset(run.target, config=run.config())
    return {"loss": losses, "values": {"step": np.int64(got[0]), "weights": got[1]}}


if __name__ == "__main__":
    main()
