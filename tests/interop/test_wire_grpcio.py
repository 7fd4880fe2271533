"""The wire against gRPC's own client and server (grpcio, and the older gRPC inside TensorFlow), without TensorFlow's services."""
import concurrent.futures
import os
import pathlib
import socket
import subprocess
import threading
import time

import grpc
import pytest

COMPARES = False

TOP = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TRAINERA_BUILD", TOP / "build"))
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_http_proxy", 0)]

pytestmark = pytest.mark.asan


def built(target):
    subprocess.run(["ninja", "-C", BUILD, target], check=True, stdout=subprocess.DEVNULL)
    return BUILD / target


@pytest.fixture(scope="module")
def port():
    p = subprocess.Popen([built("tests/unit/echo_server")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield int(p.stdout.readline())
    p.stdin.close()
    assert p.wait(20) == 0


@pytest.fixture
def channel(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=ANY_SIZE + [("grpc.use_local_subchannel_pool", 1)]) as c:
        yield c


def method(channel, name):
    return channel.unary_unary(f"/echo.Echo/{name}", request_serializer=None, response_deserializer=None)


@pytest.mark.parametrize("size", [0, 1, 1000, 16384, 65536, 1 << 20, 5_000_000, 64_000_000])
def test_echo(channel, size):
    data = os.urandom(min(size, 1 << 20)) * max(1, size >> 20) if size >= 1 << 20 else os.urandom(size)
    for name in ("Echo", "Pool"):
        assert method(channel, name)(data, timeout=60) == data


def test_large_one_way(channel):
    assert method(channel, "Sink")(bytes(80_000_000), timeout=60) == b"80000000"
    assert len(method(channel, "Source")(b"80000000", timeout=60)) == 80_000_000


@pytest.mark.parametrize("code", range(1, 17))
def test_error_codes(channel, code):
    with pytest.raises(grpc.RpcError) as e:
        method(channel, "Fail")(b"%d 100%% wrong \xc3\xa4\nline" % code, timeout=10)
    assert e.value.code().value[0] == code
    assert e.value.details() == "100% wrong ä\nline"


def test_long_error_is_cut(channel):
    with pytest.raises(grpc.RpcError) as e:
        method(channel, "Fail")(b"3 " + "ä".encode() * 50000, timeout=10)
    assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert e.value.details().startswith("ää") and e.value.details().endswith("ä...")
    assert len(e.value.details()) < 4096


def test_unknown_method(channel):
    with pytest.raises(grpc.RpcError) as e:
        method(channel, "Nope")(b"", timeout=10)
    assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED and "/echo.Echo/Nope" in e.value.details()


def talk(channel, name="Talk"):
    return channel.stream_stream(f"/echo.Echo/{name}", request_serializer=None, response_deserializer=None)


def test_stream(channel):
    """Each message is answered, in order, whatever came meanwhile; large ones among small ones."""
    sent = [os.urandom(n) for n in [0, 1, 4, 7, 100, 3000, 70_000] * 30 + [20_000_000, 0, 90_000_000, 1]]
    assert list(talk(channel)(iter(sent), timeout=120)) == sent
    assert list(talk(channel)(iter([]), timeout=60)) == []


def test_stream_in_step(channel):
    """The next question follows from the last answer: an answer does not wait for more questions."""
    queue = ["begin"]
    heard = threading.Semaphore(1)

    def questions():
        for _ in range(19):
            heard.acquire()
            yield queue[-1].encode()

    for answer in talk(channel)(questions(), timeout=60):
        queue.append(answer.decode() + "x")
        heard.release()
    assert queue[-1] == "begin" + 19 * "x"


@pytest.mark.parametrize("before", [0, 1, 5])
def test_stream_ends_with_an_error(channel, before):
    got = []
    with pytest.raises(grpc.RpcError) as e:
        for answer in talk(channel)(iter([b"ok"] * before + [b"fail"] + [b"never"] * 1000), timeout=60):
            got.append(answer)
    assert (got, e.value.code(), e.value.details()) == ([b"ok"] * before, grpc.StatusCode.OUT_OF_RANGE, "100% wrong ä")
    with pytest.raises(grpc.RpcError) as e:
        list(talk(channel, "SmallTalk")(iter([b"ok"] * before + [bytes(2000)]), timeout=60))
    assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def counted(channel, want, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = [int(n) for n in method(channel, "Count")(b"", timeout=20).split()]
        if want(*got):
            return got
        time.sleep(0.02)
    pytest.fail(f"{got} calls were given up and are parked")


def test_stream_pushes_back(channel):
    """While a message waits in its handler no more than the window is taken from the client; leaving ends the handler's wait, a deadline too."""
    given_up = counted(channel, lambda *_: True)[0]
    pulled = []

    def questions():
        yield b"park"
        for i in range(1000):
            pulled.append(i)
            yield bytes(1 << 20)

    call = talk(channel)(questions())
    counted(channel, lambda _, parked: parked == 1)
    n = -1
    while len(pulled) != n:  # until it stands still
        n = len(pulled)
        assert n < 200
        time.sleep(0.5)
    assert method(channel, "Echo")(b"others go on", timeout=20) == b"others go on"
    call.cancel()
    counted(channel, lambda gone, parked: (gone, parked) == (given_up + 1, 0))
    with pytest.raises(grpc.RpcError) as e:
        list(talk(channel)(iter([b"x", b"park"]), timeout=0.5))
    assert e.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    counted(channel, lambda gone, parked: (gone, parked) == (given_up + 2, 0))


def test_stream_and_the_servers_end():
    """A stream between two messages does not keep a server from ending: its client is told."""
    p = subprocess.Popen([built("tests/unit/echo_server")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with grpc.insecure_channel(f"127.0.0.1:{int(p.stdout.readline())}", options=ANY_SIZE) as c:
        over = threading.Event()

        def questions():
            yield b"one"
            over.wait(60)

        call = talk(c)(questions(), timeout=60)
        assert next(call) == b"one"
        p.stdin.close()
        with pytest.raises(grpc.RpcError) as e:
            next(call)
        over.set()
        assert e.value.code() == grpc.StatusCode.UNAVAILABLE
    assert p.wait(60) == 0


def test_too_large_for_the_method(channel):
    for n in (1025, 40_000_000):
        with pytest.raises(grpc.RpcError) as e:
            method(channel, "Small")(bytes(n), timeout=20)
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert method(channel, "Small")(bytes(1024), timeout=10) == bytes(1024)


def test_compressed_is_refused(channel):
    with pytest.raises(grpc.RpcError) as e:
        channel.unary_unary("/echo.Echo/Echo")(bytes(10000), timeout=10, compression=grpc.Compression.Gzip)
    assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_streaming_many_or_no_messages(channel):
    for messages in ([b"a", b"b"], []):
        with pytest.raises(grpc.RpcError) as e:
            channel.stream_unary("/echo.Echo/Echo")(iter(messages), timeout=10)
        assert e.value.code() == grpc.StatusCode.INTERNAL


def test_deadline(channel):
    begin = time.time()
    with pytest.raises(grpc.RpcError) as e:
        method(channel, "Park")(b"", timeout=0.2)
    assert e.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.time() - begin < 5


def test_cancellation(channel):
    calls = [method(channel, "Park").future(b"") for _ in range(50)]
    time.sleep(0.05)
    for c in calls:
        c.cancel()
    for c in calls:
        with pytest.raises(grpc.FutureCancelledError):
            c.result(timeout=10)
    assert method(channel, "Echo")(b"alive", timeout=10) == b"alive"


def test_thousand_concurrent_calls(channel):
    parked = [method(channel, "Park").future(b"") for _ in range(1000)]
    calls = [method(channel, "Pool").future(b"%d" % i * 10) for i in range(1000)]
    for i, c in enumerate(calls):
        assert c.result(timeout=60) == b"%d" % i * 10
    for c in parked:
        c.cancel()


def test_metadata_is_limited(channel):
    with pytest.raises(grpc.RpcError) as e:
        method(channel, "Echo")(b"", timeout=10, metadata=[("x-big", "v" * 15000), ("y-big", "w" * 15000)])
    assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert method(channel, "Echo")(b"alive", timeout=10) == b"alive"


def test_many_connections(port):
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}", options=ANY_SIZE + [("grpc.use_local_subchannel_pool", 1)]) for _ in range(40)]
    calls = [method(c, "Echo").future(b"%d" % i) for i, c in enumerate(channels)]
    assert [c.result(timeout=30) for c in calls] == [b"%d" % i for i in range(40)]
    for c in channels:
        c.close()


def test_http1_beside(port):
    import urllib.request
    assert urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10).read() == b"ok\n"


def test_peer_that_resets(port, channel):
    """Half a request and gone, over and over: the server serves on."""
    for i in range(50):
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"[: i % 40 + 1])
        s.close()
    assert method(channel, "Echo")(b"alive", timeout=10) == b"alive"


# ---- our client against gRPC's server --------------------------------------------------------------------------------


class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        f = {
            "/echo.Echo/Echo": lambda r, c: r,
            "/echo.Echo/Sink": lambda r, c: b"%d" % len(r),
            "/echo.Echo/Source": lambda r, c: bytes(int(r)),
        }.get(details.method)
        return f and grpc.unary_unary_rpc_method_handler(f)


def bench(address, *args):
    r = subprocess.run([built("bench/rpcbench"), "--address", address, "--seconds", "0.3", *args], capture_output=True, text=True, timeout=120)
    return r


def test_our_client_with_grpcio_server():
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), options=ANY_SIZE)
    server.add_generic_rpc_handlers([Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    r = bench(f"localhost:{port}", "--bytes", "50000000")
    assert r.returncode == 0, r.stderr
    r = bench(f"localhost:{port}", "--method", "/echo.Echo/Nope")
    assert r.returncode == 1 and "Unimplemented" in r.stderr
    server.stop(0)


def test_our_client_with_tensorflows_server_and_back(port):
    tf = pytest.importorskip("tensorflow")
    server = tf.distribute.Server.create_local_server()
    r = bench(server.target.removeprefix("grpc://"), "--method", "/tensorflow.WorkerService/GetStatus")
    assert r.returncode == 0, r.stderr
    # TensorFlow's own client, with the older gRPC, on a server that has none of its methods.
    with pytest.raises(tf.errors.UnimplementedError, match="unknown method /tensorflow.MasterService/"):
        tf.compat.v1.Session(f"grpc://localhost:{port}").list_devices()
