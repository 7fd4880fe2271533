"""CoordinationService: message by message on our leader and on TensorFlow's; and whole programs whose coordinator asks it who is alive."""
import threading
import time

import grpc
import pytest
import tensorflow as tf
from clusters import Cluster, free_ports
from conftest import tf_server
from coordinators import ended, made, marked, program
from eager_messages import co, own, pb
from tensorflow.core.framework import device_attributes_pb2

SERVICE = "/tensorflow.CoordinationService/"
DISCONNECTED, CONNECTED, ERROR = 2, 3, 4
BEAT_MS = 4000


class Leader:
    """ps/0 of a cluster of itself and two workers that we play."""

    def __init__(self, spec):
        self.channel = grpc.insecure_channel(spec["ps"][0], options=[("grpc.enable_http_proxy", 0)])
        cluster = tf.train.ClusterSpec({"ps": spec["ps"], "worker": [f"127.0.0.1:{p}" for p in free_ports(2)]}).as_cluster_def()
        self.definition = own(tf.train.ServerDef(cluster=cluster, job_name="ps", task_index=0, protocol="grpc"))

    def enable(self):
        config = co.CoordinationServiceConfig(service_type="standalone", service_leader="/job:ps/replica:0/task:0", heartbeat_timeout_in_ms=BEAT_MS,
                                              allow_new_incarnation_to_reconnect=True)
        self.definition.default_session_config.experimental.coordination_config = config.SerializeToString()
        device = own(device_attributes_pb2.DeviceAttributes(name="/job:ps/replica:0/task:0/device:CPU:0", device_type="CPU", incarnation=1))
        q = pb.CreateContextRequest(context_id=0xabcdef, server_def=self.definition, cluster_device_attributes=[device], keep_alive_secs=600)
        self.channel.unary_unary("/tensorflow.eager.EagerService/CreateContext", request_serializer=type(q).SerializeToString)(q, timeout=60)

    def begin(self, method, q):
        answer = {"RegisterTask": co.LeaderIncarnation, "Heartbeat": co.LeaderIncarnation, "GetTaskState": co.GetTaskStateResponse, "GetKeyValue": co.KeyValue,
                  "TryGetKeyValue": co.KeyValue, "GetKeyValueDir": co.GetKeyValueDirResponse, "WaitForAllTasks": co.WaitForAllTasksResponse}.get(method)
        return self.channel.unary_unary(SERVICE + method, request_serializer=type(q).SerializeToString, response_deserializer=answer.FromString if answer else None).future(q, timeout=60)

    def end(self, f):
        """The answer, or (code, whether it is the service's own word)."""
        try:
            r = f.result()
            return "OK" if isinstance(r, bytes) else r
        except grpc.RpcError as e:
            return e.code().name, b"CoordinationServiceError" in dict(e.trailing_metadata() or ()).get("grpc-status-details-bin", b"")

    def call(self, method, q):
        return self.end(self.begin(method, q))

    def ok(self, method, q):
        r = self.call(method, q)
        assert not isinstance(r, tuple), r
        return r

    def register(self, who, incarnation):
        return self.call("RegisterTask", co.RegisterTaskRequest(source_task=who, incarnation=incarnation))

    def beat(self, who, incarnation):
        return self.call("Heartbeat", co.HeartbeatRequest(source_task=who, incarnation=incarnation))

    def states(self, *who):
        return [(s.task.job_name, s.task.task_id, s.state, s.error_code, s.HasField("error_payload")) for s in self.ok("GetTaskState", co.GetTaskStateRequest(source_task=who)).task_state]


def task(job, index):
    return co.CoordinatedTask(job_name=job, task_id=index)


W0, W1, PS = task("worker", 0), task("worker", 1), task("ps", 0)
NOBODY = task("worker", 7)


@pytest.fixture(scope="module", params=["trn", "tf"])
def leader(request, tmp_path_factory):
    """Each test asks the same of both and says what both answer."""
    if request.param == "trn":
        c = Cluster(tmp_path_factory.mktemp("coordination"), 1, 0, 0, "trn", "tf", ())
        try:
            yield Leader(c.start().spec)
        finally:
            c.stop()
    else:
        spec = {"ps": [f"127.0.0.1:{free_ports(1)[0]}"]}
        server = tf_server(spec, "ps")
        yield Leader(spec)
        del server


class Beats(threading.Thread):
    def __init__(self, leader, *who):
        super().__init__(daemon=True)
        self.leader, self.who, self.over = leader, who, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(BEAT_MS / 3000):
            for w, i in self.who:
                self.leader.beat(w, i)

    def stop(self):
        self.over.set()
        self.join()


pytestmark = pytest.mark.asan


def test_a_leader(leader):
    assert leader.register(W0, 1) == ("INTERNAL", True), "no context has asked for it"
    leader.enable()

    # Registering and heartbeats.
    assert leader.states(W0, W1) == [("worker", 0, DISCONNECTED, 0, False), ("worker", 1, DISCONNECTED, 0, False)]
    assert leader.register(NOBODY, 1) == ("INVALID_ARGUMENT", True)
    assert leader.beat(NOBODY, 1) == ("INVALID_ARGUMENT", True)
    assert leader.beat(W0, 1) == ("INVALID_ARGUMENT", True), "not registered"
    first = leader.register(W0, 11)
    assert first.leader_incarnation and leader.register(W0, 11) == first, "twice is once"
    assert leader.beat(W0, 11) == first
    assert leader.register(W1, 21) == first
    beats = Beats(leader, (W0, 11), (W1, 21))
    assert leader.states(W1, W0) == [("worker", 1, CONNECTED, 0, False), ("worker", 0, CONNECTED, 0, False)]

    # Values.
    kv = lambda k, v: co.KeyValue(kv=co.KeyValueEntry(key=k, value=v))
    assert leader.call("TryGetKeyValue", co.KeyRequest(key="a/b")) == ("NOT_FOUND", True)
    waiting = leader.begin("GetKeyValue", co.KeyRequest(key="/a//b/"))
    given_up = leader.begin("GetKeyValue", co.KeyRequest(key="never"))
    assert leader.call("InsertKeyValue", kv("a/b", b"\0one")) == "OK"
    assert leader.end(waiting).kv.value == b"\0one"
    assert leader.call("InsertKeyValue", kv("//a/b", b"two")) == ("ALREADY_EXISTS", True)
    assert leader.call("InsertKeyValue", kv("a/c", b"")) == "OK"
    assert leader.call("InsertKeyValue", kv("ab", b"3")) == "OK"
    assert [(e.key, e.value) for e in leader.ok("GetKeyValueDir", co.KeyRequest(key="a/")).kv] == [("a/b", b"\0one"), ("a/c", b"")]
    assert leader.call("DeleteKeyValue", co.KeyRequest(key="a")) == "OK"
    assert leader.call("TryGetKeyValue", co.KeyRequest(key="a/b")) == ("NOT_FOUND", True)
    assert leader.ok("TryGetKeyValue", co.KeyRequest(key="ab")).kv.value == b"3"
    given_up.cancel()

    # Barriers. Two calls under way may be taken in either order.
    at = lambda id, who, *of, ms=30000: leader.begin("Barrier", co.BarrierRequest(barrier_id=id, source_task=who, tasks=of, barrier_timeout_in_ms=ms))
    a = at("one", W0, W0, W1)
    again = at("one", W0, W0, W1)
    time.sleep(0.2)
    assert not a.done()
    assert [leader.end(f) for f in (at("one", W1, W1, W0), a, again, at("one", W0, W0, W1))] == ["OK"] * 4, "who comes late finds it passed"
    a = at("two", W0, W0, W1)
    assert [leader.end(f) for f in (at("two", PS, W0, W1), a)] == [("INVALID_ARGUMENT", True)] * 2, "not one of them"
    a = at("three", W0, W0, W1)
    assert [leader.end(f) for f in (at("three", W1, W1, PS), a)] == [("INVALID_ARGUMENT", True)] * 2, "of other tasks"
    assert leader.end(at("four", W0, W0, NOBODY)) == ("INVALID_ARGUMENT", True)
    a = at("five", W0)
    assert leader.call("CancelBarrier", co.CancelBarrierRequest(barrier_id="five", source_task=W1)) == "OK"
    assert leader.end(a) == ("CANCELLED", True)
    assert leader.call("CancelBarrier", co.CancelBarrierRequest(barrier_id="five", source_task=W1)) == ("FAILED_PRECONDITION", True)
    assert leader.call("CancelBarrier", co.CancelBarrierRequest(barrier_id="six", source_task=W1)) == "OK"
    assert leader.end(at("six", W0, W0, W1)) == ("CANCELLED", True), "before it began"
    assert leader.end(at("seven", W0, W0, W1, ms=300)) == ("DEADLINE_EXCEEDED", True)

    # Coming and going.
    assert leader.call("ResetTask", co.TaskRequest(source_task=PS)) == ("FAILED_PRECONDITION", True)
    assert leader.call("ResetTask", co.TaskRequest(source_task=NOBODY)) == ("INVALID_ARGUMENT", True)
    for patience in (0.2, 1, 3, 9):  # this barrier must have begun before W1 leaves
        a = at(f"eight {patience}", W0, W0, W1, ms=int(patience * 1000) + 2000)
        time.sleep(patience)
        assert leader.call("ShutdownTask", co.TaskRequest(source_task=W1)) == "OK"
        if (r := leader.end(a)) != ("DEADLINE_EXCEEDED", True):
            break
        assert leader.register(W1, 21) == first
    assert r == ("INTERNAL", True), "one of them has left"
    assert leader.states(W1) == [("worker", 1, DISCONNECTED, 0, False)]
    beats.stop()
    assert leader.register(W1, 22) == first
    beats = Beats(leader, (W0, 11))

    # A task with an error of its own, and one that is not heard of.
    report = lambda who, code, text: leader.call("ReportErrorToService", co.ReportErrorToServiceRequest(error_origin=who, error_code=code, error_message=text))
    assert report(NOBODY, 3, "x") == ("INVALID_ARGUMENT", True)
    assert report(W1, 3, "a bad number") == "OK"
    assert leader.states(W1) == [("worker", 1, ERROR, 3, True)]
    assert report(W1, 3, "again") == ("FAILED_PRECONDITION", True)
    assert leader.beat(W1, 22) == ("INVALID_ARGUMENT", True), "its own error"
    assert leader.register(W1, 22)[0] == "ABORTED", "only after ResetTask"
    assert leader.end(at("nine", W0, W0, W1)) == ("INTERNAL", True)
    assert leader.call("ResetTask", co.TaskRequest(source_task=W1)) == "OK"
    assert leader.register(W1, 23) == first
    beats.stop()
    assert leader.register(W0, 12)[0] == "ABORTED", "a new life while the old one is believed in"
    assert leader.states(W0) == [("worker", 0, ERROR, 10, True)]
    assert leader.call("ResetTask", co.TaskRequest(source_task=W0)) == "OK"
    assert leader.register(W0, 13) == first
    beats = Beats(leader, (W0, 13))
    end = time.monotonic() + 20
    while leader.states(W1)[0][2] == CONNECTED and time.monotonic() < end:
        time.sleep(0.1)
    assert leader.states(W0, W1) == [("worker", 0, CONNECTED, 0, False), ("worker", 1, ERROR, 14, True)]
    assert "/job:worker/replica:0/task:1" in leader.ok("GetTaskState", co.GetTaskStateRequest(source_task=[W1])).task_state[0].error_message
    assert leader.beat(W1, 23) == ("UNAVAILABLE", True)
    assert leader.register(W1, 24) == first, "lost tasks may come back as another incarnation"
    assert leader.beat(W0, 99) == ("ABORTED", True), "somebody else's heartbeat"
    beats.stop()


@pytest.mark.parametrize("ps, worker", [("trn", "trn"), pytest.param("trn", "tf", marks=pytest.mark.slow), ("tf", "trn")])
def test_restarted_worker(cluster, tmp_path, monkeypatch, ps, worker):
    """The coordinator learns from the service on the ps that its worker is lost, and goes on when it is back."""
    monkeypatch.setenv("TF_PSS_ENABLE_COORDINATION_SERVICE", "1")
    c = made(cluster, ps, 1, worker=worker)
    p = program(c, tmp_path / "out.json", "count", 150, tmp_path, 0.05)
    marked(tmp_path, p, 20)
    c.task("worker").kill()
    c.task("worker").start()
    r = ended(c, p, tmp_path / "out.json")["count"]
    assert r["error"] is None and r["end"] >= 150 and r["w"] == r["end"] / 2
    logs = c.task("ps").log() + c.task("worker").log()
    assert ("has connected, incarnation" if ps == "trn" else "registered with the leader /job:ps/replica:0/task:0") in logs


def test_lost_ps(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_PSS_ENABLE_COORDINATION_SERVICE", "1")
    c = made(cluster, "trn", 2, worker="trn")
    p = program(c, tmp_path / "out.json", "count", 100000, tmp_path, 0.05)
    marked(tmp_path, p, 20)
    c.task("ps", 1).kill()
    r = ended(c, p, tmp_path / "out.json")["count"]
    assert r["error"], r
    end = time.monotonic() + 20
    while "task:1 is in error: no heartbeat of /job:ps/replica:0/task:1" not in c.task("ps", 0).log():
        assert time.monotonic() < end, c.task("ps", 0).log()
        time.sleep(0.2)
