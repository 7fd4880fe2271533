"""For every test with TensorFlow, before it is imported."""
import os

# TensorFlow's own kernels are what we are compared with, on every machine. On CPUs with VNNI or bfloat16 it would take oneDNN's by itself, which
# round differently and end the process for scalars and empty tensors (mkl_util.h).
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
