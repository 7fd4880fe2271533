#!/usr/bin/env python3
"""The commands that look: status, top, inspect, ops --json, and what is made from the help. No TensorFlow needed."""
import json
import os
import pathlib
import pty
import re
import select
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from test_cli import BIN, PATIENCE, Case, clean_env, free_port, get

EXAMPLES = pathlib.Path(os.environ.get("TRAINERA_EXAMPLES") or pathlib.Path(BIN).parent / "examples")


class Look(Case):
    def cluster(self):
        p, ready = self.start("local", "--ps", "1", "--workers", "2")
        return p, {f"{j}/{i}": t for j, i, t in (line.split() for line in ready.splitlines())}

    def test_status(self):
        _, tasks = self.cluster()
        target = tasks["worker/1"]
        out = self.run_cli("status", target)
        self.assertEqual(out.returncode, 0, out.stderr)
        self.assertRegex(out.stdout, r"^worker/1 at 127.0.0.1:\d+, Trainera \d")
        for name in tasks:
            self.assertRegex(out.stdout, rf"(?m)^{name} .* up ")
        for form in target, target.removeprefix("grpc://"), target.replace("grpc", "http") + "/", target.rsplit(":", 1)[1]:
            d = json.loads(self.run_cli("status", "--json", form).stdout)
            self.assertEqual((d["schema"], d["task"]["name"]), (1, "worker/1"))
            self.assertEqual({t["name"]: t["state"] for t in d["cluster"]["tasks"]}, dict.fromkeys(tasks, "up"))

    def test_status_when_nobody_is_there(self):
        port = free_port()
        self.refuse("status", f"127.0.0.1:{port}", code=14, says=f"127.0.0.1:{port}")
        self.refuse("status", "--timeout", "1", f"localhost:{port}", code=14)
        self.refuse("status", exit_code=2, says="one task")
        self.refuse("status", "host:port:what", exit_code=2)

    def test_top_into_a_log(self):
        _, tasks = self.cluster()
        r = self.run_cli("top", "--count=2", "--interval-ms=100", tasks["ps/0"])
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(len(re.findall(r"(?m)^worker/0 up steps/s", r.stdout)), 2)
        self.assertNotIn("\x1b", r.stdout)
        lines = self.run_cli("top", "--json", "--count=2", "--interval-ms=100", tasks["ps/0"]).stdout.splitlines()
        self.assertEqual([json.loads(x)["task"]["name"] for x in lines], ["ps/0", "ps/0"])

    def test_top_on_a_terminal(self):
        _, tasks = self.cluster()
        master, slave = pty.openpty()
        p = subprocess.Popen([BIN, "top", tasks["ps/0"]], stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        seen = b""
        end = time.monotonic() + PATIENCE
        while b"q ends" not in seen and time.monotonic() < end:
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 65536)
        self.assertIn(b"worker/1", seen)
        os.write(master, b"q")
        while time.monotonic() < end:  # until the terminal says that nobody has it any more: what was written before the end is still to be read after it
            if select.select([master], [], [], 0.1)[0]:
                try:
                    seen += os.read(master, 65536)
                except OSError:
                    break
        self.assertEqual(p.wait(PATIENCE), 0)
        self.assertIn(b"\x1b[?1049l", seen)  # the screen is given back
        os.close(master)

    def test_page(self):
        _, ready = self.start("serve", "--job=ps=127.0.0.1:0")
        port = int(ready.rsplit(":", 1)[1])
        page = get(port, "/")
        self.assertIn("200 OK", page.splitlines()[0])
        self.assertIn("text/html", page)
        self.assertIn("</html>", page)
        self.assertIn("application/json", get(port, "/status.json"))


class UnderLoad(Case):
    def test_pages_of_a_job_that_trains(self):
        """Many readers of every task, under the sanitizers too: whole answers, real figures, and nothing is found when the tasks end."""
        log = self.path("log")
        with open(log, "wb") as f:
            p = subprocess.Popen([BIN, "launch", "--ps", "2", "--workers", "2", "--log-dir=", "--", EXAMPLES / "trainer", "--quiet", "--steps=100000000"],
                                 env=clean_env(TRAINERA_LOG="warn"), stdout=f, stderr=f)
        self.addCleanup(lambda: p.poll() is None and (p.kill(), p.wait()))
        said = lambda: pathlib.Path(log).read_text(errors="replace")
        spec = lambda: re.search(r"cluster (\{.*\})", said())
        end = time.monotonic() + 120
        while not spec() and time.monotonic() < end:
            time.sleep(0.02)
        ports = {f"{job}/{i}": int(a.rsplit(":", 1)[1]) for job, v in json.loads(spec()[1]).items() for i, a in enumerate(v)}

        def steps(port):
            try:
                return json.loads(get(port, "/status.json").split("\r\n\r\n", 1)[1])["task"]["steps"]["part_time"]["count"]
            except OSError:
                return 0
        while min(steps(port) for port in ports.values()) < 20 and p.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        self.assertIsNone(p.poll(), said())
        wrong = []

        def read(name):
            try:
                for _ in range(15):
                    page, status, metrics = (get(ports[name], path) for path in ("/", "/status.json", "/metrics"))
                    for text in page, status, metrics:
                        head, body = text.split("\r\n\r\n", 1)
                        assert "200 OK" in head and int(re.search(r"Content-Length: (\d+)", head)[1]) == len(body.encode()), head
                    task = json.loads(body := status.split("\r\n\r\n", 1)[1])["task"]
                    assert task["name"] == name and task["traffic"]["in_bytes"] > 0, body
                    assert "</html>" in page and metrics.rstrip()[-1].isdigit()
            except Exception as e:  # noqa: BLE001
                wrong.append(f"{name}: {e!r}")
        threads = [threading.Thread(target=read, args=(name,)) for name in ports for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        before = {name: steps(port) for name, port in ports.items()}
        while any(steps(port) <= before[name] for name, port in ports.items()) and time.monotonic() < end:
            time.sleep(0.1)  # the job has gone on
        self.assertIsNone(p.poll(), said())
        p.terminate()
        self.assertEqual(p.wait(PATIENCE * 2), 143)
        for bad in "AddressSanitizer", "LeakSanitizer", "runtime error":
            self.assertNotIn(bad, said())


class Made(Case):
    def test_completion(self):
        script = self.path("c", self.run_cli("completion", "bash").stdout)

        def complete(*words):
            code = f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; [ -n \"${{COMP_WORDS[{len(words) - 1}]}}\" ] || COMP_WORDS+=(''); _trainera; echo ${{COMPREPLY[*]}}"
            return subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=PATIENCE).stdout.split()
        self.assertEqual(complete("trainera", "ser"), ["serve"])
        self.assertIn("--ps_hosts=", complete("trainera", "serve", "--ps"))
        self.assertIn("--json", complete("trainera", "status", "--j"))
        self.refuse("completion", "fish", exit_code=2, says="bash")

    def test_man_page_says_what_help_says(self):
        text = self.run_cli("man").stdout
        plain = re.sub(r"\\f[BIR]|\\&", "", text).replace("\\-", "-")
        for line in self.run_cli("--help").stdout.splitlines():
            m = re.match(r"  trainera (\w+) ", line)
            if not m or m[1] == "help":
                continue
            self.assertIn(f".SS trainera {m[1]}", plain)
            for flag in re.findall(r"(?m)^  (--[\w-]+)", self.run_cli("help", m[1]).stdout):
                self.assertIn(flag, plain)

    def test_json(self):
        ops = json.loads(self.run_cli("ops", "--json").stdout)["ops"]
        self.assertIn("MatMul", ops)
        self.assertIn("signature", json.loads(self.run_cli("ops", "--json", "--signatures").stdout)["ops"][0])
        graph = self.path("g.pbtxt", 'node { name: "a" op: "NoOp" }\nnode { name: "b" op: "NobodyHasThis" }\n')
        r = self.run_cli("ops", "--json", graph)
        self.assertEqual((r.returncode, json.loads(r.stdout)["missing"][0]["op"]), (1, "NobodyHasThis"))
        r = self.run_cli("inspect", "--json", graph)
        self.assertEqual((r.returncode, json.loads(r.stdout)["graph"]["nodes"]), (1, 2))
        self.refuse("inspect", self.path("nothing"), code=5, says="no such file")


if __name__ == "__main__":
    unittest.main()
