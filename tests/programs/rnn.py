"""Recurrent nets that add up a sequence: static and dynamic, LSTM, GRU and others, with lengths, both directions, gradients clipped."""
from trainer import feeder, main, np, tf

c = tf.nn.rnn_cell
CELLS = {
    "lstm": lambda: c.BasicLSTMCell(12),
    "peephole": lambda: c.LSTMCell(12, use_peepholes=True, num_proj=8, cell_clip=5.0),
    "gru": lambda: c.GRUCell(12),
    "basic": lambda: c.BasicRNNCell(12),
    "stacked": lambda: c.MultiRNNCell([c.LSTMCell(8), c.ResidualWrapper(c.GRUCell(8))]),
    "dropout": lambda: c.DropoutWrapper(c.LSTMCell(12), output_keep_prob=0.8, state_keep_prob=0.9),
}
VARIANTS = {
    "static-lstm": {"cell": "lstm", "how": "static"},
    "dynamic-lstm": {"cell": "lstm"},
    "dynamic-gru": {"cell": "gru"},
    "static-gru": {"cell": "gru", "how": "static"},
    "lstm-v2": {"cell": "lstm", "v2": True},
    "lengths": {"cell": "lstm", "lengths": True},
    "lengths-gru": {"cell": "gru", "lengths": True, "how": "static"},
    "both-ways": {"cell": "lstm", "how": "both", "lengths": True},
    "time-major": {"cell": "basic", "how": "time-major"},
    "swap": {"cell": "gru", "how": "swap"},
    "peephole": {"cell": "peephole"},
    "stacked": {"cell": "stacked"},
    "dropout": {"cell": "dropout", "how": "static"},
    "dropout-loop": {"cell": "dropout"},
    "raw": {"cell": "lstm", "how": "raw"},
    "block": {"cell": "lstm", "how": "block"},
}
NOISY = {"dropout-loop"}  # iterations run in parallel: which of them draws first is open
QUICK = {"static-lstm", "dynamic-lstm", "dynamic-gru", "lstm-v2", "lengths"}
TIME = 6


def program(run, cell="lstm", how="dynamic", lengths=False, v2=False):
    rng = np.random.RandomState(4)
    xs = rng.randn(256, TIME, 3).astype(np.float32)
    ns = rng.randint(1, TIME + 1, 256).astype(np.int32)
    live = np.arange(TIME)[None, :, None] < (ns if lengths else np.full(256, TIME))[:, None, None]
    ys = (xs * live).sum((1, 2)).astype(np.float32)
    if v2:
        tf.enable_control_flow_v2()
    try:
        with run.device():
            x, n, y = tf.placeholder(tf.float32, [32, TIME, 3]), tf.placeholder(tf.int32, [32]), tf.placeholder(tf.float32, [32])
            make, long = CELLS[cell], n if lengths else None
            if how == "static":
                outs, _ = tf.nn.static_rnn(make(), tf.unstack(x, axis=1), sequence_length=long, dtype=tf.float32)
                last = outs[-1] if not lengths else tf.add_n(outs)
            elif how == "both":
                outs, states = tf.nn.bidirectional_dynamic_rnn(make(), make(), x, sequence_length=long, dtype=tf.float32)
                last = tf.concat([states[0].h, states[1].h, tf.reduce_max(tf.concat(outs, 2), 1)], 1)
            elif how == "time-major":
                outs, last = tf.nn.dynamic_rnn(make(), tf.transpose(x, [1, 0, 2]), dtype=tf.float32, time_major=True, parallel_iterations=1)
            elif how == "block":  # the whole sequence in one op
                w, b = tf.get_variable("lstm_w", [15, 48]), tf.get_variable("lstm_b", [48], initializer=tf.zeros_initializer())
                zero, none = tf.zeros([32, 12]), tf.zeros([12])
                last = tf.raw_ops.BlockLSTM(seq_len_max=TIME, x=tf.transpose(x, [1, 0, 2]), cs_prev=zero, h_prev=zero, w=w, wci=none, wcf=none, wco=none, b=b).h[-1]
            elif how == "raw":
                real, steps = make(), tf.TensorArray(tf.float32, TIME).unstack(tf.transpose(x, [1, 0, 2]))

                def loop(time, out, state, extra):
                    end = tf.fill([32], False) | (time >= TIME)
                    if out is None:
                        state = real.zero_state(32, tf.float32)
                    following = tf.cond(tf.reduce_all(end), lambda: tf.zeros([32, 3]), lambda: steps.read(time))
                    return end, following, state, out, None
                outs, _, _ = tf.nn.raw_rnn(real, loop)
                last = outs.stack()[-1]
            else:
                outs, _ = tf.nn.dynamic_rnn(make(), x, sequence_length=long, dtype=tf.float32, swap_memory=how == "swap")
                last = tf.reduce_sum(outs, 1) if lengths else outs[:, -1]
            w = tf.get_variable("w", [last.shape[1], 1])
            loss = tf.reduce_mean(tf.squared_difference(tf.matmul(last, w)[:, 0], y))
            opt = tf.train.AdamOptimizer(0.03)
            pairs = opt.compute_gradients(loss)
            clipped, norm = tf.clip_by_global_norm([g for g, _ in pairs], 5.0)
            train = opt.apply_gradients(zip(clipped, [v for _, v in pairs]))
    finally:
        tf.disable_control_flow_v2()
    return run.train(loss, train, feeder([x, n, y], [xs, ns, ys]), each={"norm": norm}, values={v.op.name: v for v in tf.trainable_variables()})


if __name__ == "__main__":
    main()
