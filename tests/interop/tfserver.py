"""One task run by the real TensorFlow: tfserver.py CLUSTER_JSON JOB TASK. Ends when its stdin closes, so it never outlives a test run."""
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf  # noqa: E402

spec = {job: {int(i): a for i, a in tasks.items()} if isinstance(tasks, dict) else tasks for job, tasks in json.loads(sys.argv[1]).items()}
server = tf.distribute.Server(tf.train.ClusterSpec(spec), job_name=sys.argv[2], task_index=int(sys.argv[3]), start=True)
print("serving", server.target, flush=True)
sys.stdin.read()
os._exit(0)
