"""A worker of the first ParameterServerStrategy (2019: between graphs, no coordinator): strategy2019.py OUT.json STEPS FOLDER, all else in TF_CONFIG.

TensorFlow 2.15 has this strategy for Estimators only; its Keras refuses it. MARK in the environment names the file that tells the step; HOLD, "STEP FILE", makes
training wait before that step until there is such a file."""
import json
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

OUT, STEPS, FOLDER = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(-1, 1)
v1 = tf.compat.v1


def data():
    return tf.data.Dataset.from_tensor_slices((X, 3 * X + 1)).repeat().batch(16)


class Marks(v1.train.SessionRunHook):
    def __init__(self):
        self.mark, (self.hold, self.file) = pathlib.Path(os.environ["MARK"]), (os.environ.get("HOLD") or "0 ").split(" ", 1)

    def before_run(self, run_context):
        return v1.train.SessionRunArgs(v1.train.get_global_step())

    def after_run(self, run_context, run_values):
        new = self.mark.with_suffix(".new")  # readers see the old one or the whole new one
        new.write_text(str(int(run_values.results)))
        new.rename(self.mark)
        if self.file and int(run_values.results) >= int(self.hold) - 1:
            end = time.monotonic() + 180
            while not os.path.exists(self.file) and time.monotonic() < end:
                time.sleep(0.02)


def model_fn(features, labels, mode):
    w = v1.get_variable("w", [1, 1], initializer=v1.zeros_initializer())
    b = v1.get_variable("b", [1], initializer=v1.zeros_initializer())
    loss = tf.reduce_mean((features @ w + b - labels) ** 2)
    train = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_or_create_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


config = tf.estimator.RunConfig(FOLDER, train_distribute=v1.distribute.experimental.ParameterServerStrategy())
estimator = tf.estimator.Estimator(model_fn, config=config)
tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(data, max_steps=STEPS, hooks=[Marks()]), tf.estimator.EvalSpec(data, steps=1))
result = {"w": 0.0, "b": 0.0, "step": -1}
if config.is_chief:  # has saved at the end
    result = {"w": float(estimator.get_variable_value("w")[0, 0]), "b": float(estimator.get_variable_value("b")[0]), "step": int(estimator.get_variable_value("global_step"))}
OUT.write_text(json.dumps(result))
