"""tfdbg's ops, without dumps."""
import numpy as np
import tensorflow as tf

from kernels import Case as C


def cases_debug(rng, quick):
    name = dict(tensor_name="x:0")
    odd = np.array([1, np.nan, -np.inf, 0, -2.5, np.inf, 7, -0.0])
    for t in (np.float16, np.float32, np.float64):
        yield C("DebugNanCount", [odd.astype(t)], **name)
    for t in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):
        yield C("DebugNanCount", [rng.randint(0, 100, (2, 3)).astype(t)], **name)
        yield C("DebugNumericSummary", [rng.randint(0, 100, (2, 3)).astype(t)], **name, tol=1e-12)
    for t in (np.float32, np.float64):
        for x in (odd, rng.randn(3, 4, 5), np.zeros([0, 3]), np.array(2.5), np.array([np.nan, np.inf])):
            yield C("DebugNumericSummary", [x.astype(t)], **name, tol=1e-12)
            yield C("DebugNumericSummary", [x.astype(t)], lower_bound=-1.0, upper_bound=2.5, mute_if_healthy=True, **name, tol=1e-12)
    yield C("DebugNumericSummary", [np.array([True, False, True])], **name, tol=1e-12)
    yield C("DebugIdentity", [odd], **name)
    yield C("DebugIdentity", [odd], gated_grpc=True, **name)
    yield C("DebugIdentity", [np.array([b"a", b"bc"], object)], **name)
    for bad in ("", "a:b", "a:0:1", "a:"):
        yield C("DebugIdentity", [odd], tensor_name=bad)
    yield C("DebugIdentity", [odd], debug_urls=["gopher://x"], **name)
    yield C("DebugIdentityV3", [odd], **name)
    yield C("DebugGradientIdentity", [odd])
    for op in ("Copy", "CopyHost"):
        yield C(op, [odd.astype(np.float32)])
        yield C(op, [np.array([[b"a"]], object)], debug_ops_spec=["DebugIdentity;file:///x;0"], **name)
        yield C(op, [odd], debug_ops_spec=["DebugIdentity;file:///x"])
    for mode in (1, 2, 3, 4, 5, 8):
        for t in (np.float16, np.float32, np.float64, np.int32, np.uint64, np.int8):
            x = np.array([1, 0, 2], t) if np.issubdtype(t, np.integer) else odd.astype(t)
            yield C("DebugNumericSummaryV2", [x], tensor_debug_mode=mode, tensor_id=7)
        yield C("DebugNumericSummaryV2", [np.array([[True, False]])], tensor_debug_mode=mode, tensor_id=3, output_dtype=tf.float64)
        yield C("DebugNumericSummaryV2", [np.zeros([1, 2, 3, 1, 1, 2, 1, 1], np.float32)], tensor_debug_mode=mode, tensor_id=1 << 24, output_dtype=tf.float32)
        yield C("DebugNumericSummaryV2", [np.zeros([2], np.float32)], tensor_debug_mode=mode, tensor_id=(1 << 24) + 1)
