"""The canned estimators under train_and_evaluate, as a cluster's process: TF_CONFIG says which task this is.

    TF_CONFIG='{"cluster": {"chief": […], "ps": […], "worker": […]}, "task": {"type": "chief", "index": 0}}' python estimators.py --model dnn --model_dir DIR

Each chief and worker starts a TensorFlow server of its own, as tf.estimator does. With `"environment": "google"` in TF_CONFIG tf.estimator
leaves that to others: then `trainera serve` with the same TF_CONFIG is the task, and this process only its client.
"""
import argparse
import json
import os

from trainer import np, tf

fc = tf.feature_column
JOBS = ["cook", "clerk", "nurse", "smith"]


def people(seed, n=400):
    rng = np.random.RandomState(seed)
    age, job, hours = rng.uniform(18, 80, n).astype(np.float32), rng.randint(0, 4, n), rng.randn(n).astype(np.float32)
    y = (np.sin(age / 10) + job * 0.8 + hours > 1.2).astype(np.int32)
    return {"age": age, "job": np.array(JOBS)[job], "hours": hours}, y


def inputs(seed, batch=40, train=True):
    def read():
        d = tf.data.Dataset.from_tensor_slices(people(seed))
        return d.shuffle(400, seed=seed).repeat().batch(batch) if train else d.batch(batch)
    return read


def make(model, model_dir, config):
    age, hours = fc.numeric_column("age", normalizer_fn=lambda a: (a - 50.0) / 20.0), fc.numeric_column("hours")
    ages = fc.bucketized_column(fc.numeric_column("age"), list(range(20, 80, 5)))
    job = fc.categorical_column_with_vocabulary_list("job", JOBS)
    crossed = fc.crossed_column([ages, "job"], 100)
    wide, deep = [ages, job, crossed, hours], [age, hours, fc.embedding_column(job, 4), fc.indicator_column(ages)]
    e = tf.estimator
    if model == "dnn":
        return e.DNNClassifier([16, 8], deep, model_dir, optimizer=lambda: tf.train.AdagradOptimizer(0.1), config=config)
    if model == "linear":
        return e.LinearClassifier(wide, model_dir, optimizer=lambda: tf.train.FtrlOptimizer(0.1), config=config)
    return e.DNNLinearCombinedClassifier(model_dir, wide, lambda: tf.train.FtrlOptimizer(0.1), deep, lambda: tf.train.AdagradOptimizer(0.1), [16, 8], config=config)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", choices=["dnn", "linear", "wide-deep"], default="dnn")
    ap.add_argument("--model_dir", required=True)
    ap.add_argument("--steps", type=int, default=300)
    a = ap.parse_args()
    config = tf.estimator.RunConfig(model_dir=a.model_dir, tf_random_seed=7, save_checkpoints_steps=100, save_summary_steps=50, log_step_count_steps=50,
                                    experimental_max_worker_delay_secs=0)
    est = make(a.model, a.model_dir, config)
    train = tf.estimator.TrainSpec(inputs(1 + (config.task_id or 0) + (config.task_type == "worker")), a.steps)
    test = tf.estimator.EvalSpec(inputs(9, train=False), steps=None, start_delay_secs=0, throttle_secs=1)
    tf.estimator.train_and_evaluate(est, train, test)
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type", "chief")
    if task == "evaluator" or not os.environ.get("TF_CONFIG"):
        got = {k: float(v) for k, v in est.evaluate(inputs(9, train=False)).items()}
        print("evaluated", json.dumps(got), flush=True)


if __name__ == "__main__":
    main()
