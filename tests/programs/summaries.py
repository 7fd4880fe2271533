"""Summaries of a training: scalars, histograms, images, text, merge_all, an event file; what is in them comes out the same."""
import os

from trainer import digits, feeder, main, tf

VARIANTS = {"all": {}}
QUICK = {"all"}


def program(run):
    xs, ys = digits(128)
    with run.device():
        x, y = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
        h = tf.layers.dense(tf.layers.flatten(x), 16, tf.nn.relu)
        logits = tf.layers.dense(h, 10)
        loss = tf.losses.sparse_softmax_cross_entropy(y, logits)
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)
        tf.summary.scalar("loss", loss)
        tf.summary.scalar("dead", tf.nn.zero_fraction(h))
        tf.summary.histogram("hidden", h)
        for v in tf.trainable_variables():
            tf.summary.histogram(v.op.name, v)
        tf.summary.image("input", x, max_outputs=2)
        tf.summary.text("labels", tf.strings.join(["step ", tf.as_string(step), ", first label ", tf.as_string(y[0])]))
        tf.summary.tensor_summary("logits", logits[:2])
        merged = tf.summary.merge_all()
    writer = tf.summary.FileWriter(os.path.join(run.folder, "events"), tf.get_default_graph())
    out = run.train(loss, train, feeder([x, y], [xs, ys]), each={"summary": merged})
    out["summaries"] = out["values"].pop("summary").tolist()
    for i, s in enumerate(out["summaries"]):
        writer.add_summary(s, i)
    writer.close()
    return out


if __name__ == "__main__":
    main()
