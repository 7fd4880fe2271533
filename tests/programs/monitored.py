"""MonitoredTrainingSession with hooks: trains, saves, stops; comes back, resumes from the checkpoint and trains on."""
import glob
import os

from trainer import SEED, digits, feeder, main, tf

VARIANTS = {"saved": {}, "resource": {"resource": True}, "sharded": {"sharded": True}}
QUICK = {"saved", "resource"}


class Losses(tf.train.SessionRunHook):
    """What a user's hook does: ask for more than the program fetches."""

    def __init__(self, loss, into):
        self.loss, self.into = loss, into

    def before_run(self, context):
        return tf.train.SessionRunArgs(self.loss)

    def after_run(self, context, values):
        self.into.append(float(values.results))


def part(run, folder, last, losses, resource=False, sharded=False):
    """Trains until global step `last`, from wherever the folder's checkpoint is. Returns the weights."""
    xs, ys = digits(256)
    with tf.Graph().as_default():
        tf.set_random_seed(SEED)
        with run.device(), tf.variable_scope("model", use_resource=resource):
            x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
            h = tf.layers.dense(tf.layers.flatten(x), 16, tf.nn.tanh)
            loss = tf.losses.sparse_softmax_cross_entropy(y, tf.layers.dense(h, 10))
            step = tf.train.get_or_create_global_step()
            train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
            tf.summary.scalar("loss", loss)
            weights = tf.concat([tf.reshape(v, [-1]) for v in tf.trainable_variables()], 0)
            scaffold = tf.train.Scaffold(saver=tf.train.Saver(sharded=sharded, max_to_keep=2))
        hooks = [tf.train.StopAtStepHook(last_step=last), tf.train.NanTensorHook(loss), Losses(loss, losses), tf.train.LoggingTensorHook({"loss": loss}, every_n_iter=10),
                 tf.train.CheckpointSaverHook(folder, save_steps=7, scaffold=scaffold)]
        feed = feeder([x, y], [xs, ys])
        with tf.train.MonitoredTrainingSession(run.target, is_chief=True, checkpoint_dir=folder, scaffold=scaffold, hooks=hooks, config=run.config(), save_checkpoint_steps=None,
                                               save_checkpoint_secs=None, save_summaries_steps=5, log_step_count_steps=10) as sess:
            at = sess.run_step_fn(lambda step_context: step_context.session.run(step))
            while not sess.should_stop():
                sess.run(train, feed(at))
                at += 1
            got = None
        with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(tf.train.Scaffold(saver=tf.train.Saver(sharded=sharded)), run.target, run.config(), checkpoint_dir=folder)) as sess:
            got = sess.run([step, weights])
    return got


def program(run, resource=False, sharded=False):
    folder = os.path.join(run.folder, f"saved-{resource}-{sharded}")
    losses, half = [], run.steps // 2
    first = part(run, folder, half, losses, resource, sharded)
    assert first[0] == half and len(losses) == half
    if run.ps:
        tf.Session.reset(run.target, config=run.config())  # as if the cluster had been started anew
    last = part(run, folder, run.steps, losses, resource, sharded)
    kept = tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths
    events = [e for f in sorted(glob.glob(os.path.join(folder, "events*"))) for e in tf.train.summary_iterator(f)]
    seen = [(e.step, v.simple_value) for e in events for v in e.summary.value if v.tag.endswith("loss")]
    assert len(seen) >= run.steps // 5  # at which steps exactly is left open by the hook, which reads the step beside its update
    assert all(abs(v - losses[step - 1]) < 1e-5 for step, v in seen), (seen, losses)
    return {"loss": losses, "values": {"first": first[1], "last": last[1], "step": last[0], "kept": len(kept)}, "folder": folder}


if __name__ == "__main__":
    main()
