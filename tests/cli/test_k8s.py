#!/usr/bin/env python3
"""The manifest of `trainera init k8s`, as far as it can be judged without a cluster: it is YAML, has only fields that the API knows, of their types, and all that it
asks for; and its parts fit together. (tests/condor runs what its containers run.)

    TRAINERA_BIN=build/trainera tests/cli/test_k8s.py [-v] [name…]
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
BIN = os.environ.get("TRAINERA_BIN") or str(TOP / "build" / "trainera")
LABEL = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
FIELDS = {}
for row in (TOP / "tests" / "cli" / "k8s_fields.txt").read_text().splitlines()[1:]:
    kind, *fields = row.split()
    FIELDS[kind] = {f.split(":")[0].rstrip("!"): (f.split(":")[1], "!" in f) for f in fields}
TO_JSON = "import sys, json, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"


def parse(text):
    """Documents of a YAML file: by this Python's parser or by that of Debian's; None: neither has one."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import yaml"], capture_output=True).returncode == 0:
            r = subprocess.run([python, "-c", TO_JSON], input=text, capture_output=True, text=True)
            if r.returncode:
                raise AssertionError(r.stderr)
            return json.loads(r.stdout)
    return None


def wrong(value, kind, where):
    """What the API would refuse about a value of that kind, a line each."""
    if kind.startswith("list["):
        return [f"{where}: no list"] if not isinstance(value, list) else [w for i, v in enumerate(value) for w in wrong(v, kind[5:-1], f"{where}[{i}]")]
    if kind == "{str}":
        return [] if isinstance(value, dict) and all(isinstance(x, str) for pair in value.items() for x in pair) else [f"{where}: no map of strings: {value}"]
    if kind in ("str", "int", "bool"):
        return [] if type(value).__name__ == kind else [f"{where}: {value!r} is no {kind}"]
    if kind == "object":  # a number or a name
        return [] if type(value) in (str, int) else [f"{where}: {value!r}"]
    if not isinstance(value, dict):
        return [f"{where}: {value!r} is no {kind}"]
    known = FIELDS[kind]
    return [f"{where}: {kind} has no field {k}" for k in value if k not in known] + [f"{where}: {kind} needs {k}" for k, (_, must) in known.items() if must and k not in value] + \
        [w for k, v in value.items() if k in known for w in wrong(v, known[k][0], f"{where}.{k}")]


def expand(text, environment):
    """What Kubernetes does to a container's command: $(NAME) where NAME is known, $$ is a $."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda m: "$" if m[0] == "$$" else environment.get(m[1], m[0]), text)


class Manifest(unittest.TestCase):
    def write(self, *args, code=0):
        r = subprocess.run([BIN, "init", "k8s", *args], capture_output=True, text=True)
        self.assertEqual(r.returncode, code, r.stderr)
        if code:
            return r.stderr
        docs = parse(r.stdout)
        if docs is None:
            self.skipTest("no YAML parser: python3-yaml")
        return docs

    def test_the_api_takes_it(self):
        docs = self.write("--image", "registry.local:5000/trainer:1", "--ps", "3", "--workers", "5", "--name", "train-1", "--port", "3333", "--", "python", "t.py")
        self.assertEqual([(d["apiVersion"], d["kind"]) for d in docs], [("v1", "Service"), ("v1", "ConfigMap"), ("apps/v1", "StatefulSet"), ("apps/v1", "StatefulSet")])
        self.assertEqual([w for d in docs for w in wrong(d, d["kind"], d["kind"])], [])
        self.assertTrue(wrong({"spec": {"containers": [{"nam": "x"}]}}, "PodTemplateSpec", "t"))  # the check can fail
        names = [(d["kind"], d["metadata"]["name"]) for d in docs]
        self.assertEqual(len(set(names)), 4)
        for _, name in names:
            self.assertRegex(name, f"^{LABEL}$")

        service, config, *sets = docs
        self.assertEqual(service["spec"]["clusterIP"], "None")  # headless: each pod has a name
        self.assertTrue(service["spec"]["publishNotReadyAddresses"])  # which others need before it is ready
        spec = json.loads(config["data"]["spec.json"])
        for job, s in zip(("ps", "worker"), sets):
            pod, want = s["spec"]["template"], s["spec"]["selector"]["matchLabels"]
            labels = pod["metadata"]["labels"]
            self.assertEqual({k: labels.get(k) for k in want}, want)
            self.assertEqual({k: labels.get(k) for k in service["spec"]["selector"]}, service["spec"]["selector"])
            self.assertEqual(s["spec"]["serviceName"], service["metadata"]["name"])
            # Pods are set-0, set-1 …, at POD.SERVICE, and listen where the spec says.
            self.assertEqual(spec[job], [f"{s['metadata']['name']}-{i}.{service['metadata']['name']}:3333" for i in range(s["spec"]["replicas"])])
            self.assertIn(s["spec"]["podManagementPolicy"], ("OrderedReady", "Parallel"))
            container, = pod["spec"]["containers"]
            self.assertRegex(container["name"], f"^{LABEL}$")
            self.assertEqual(container["image"], "registry.local:5000/trainer:1")
            self.assertEqual([p["containerPort"] for p in container["ports"]], [3333])
            mount, = container["volumeMounts"]
            volume, = pod["spec"]["volumes"]
            self.assertEqual((mount["name"], volume["configMap"]["name"]), (volume["name"], config["metadata"]["name"]))
            self.assertIn(f"--cluster_spec=@{mount['mountPath']}/spec.json", container["args"][0])
            for probe in ("readinessProbe", "livenessProbe"):
                if job == "ps":
                    self.assertEqual(container[probe]["httpGet"], {"path": "/healthz", "port": 3333})
                else:
                    self.assertNotIn(probe, container)  # a worker is the user's program; it may not answer for a while
            self.assertEqual(subprocess.run([*container["command"], "exit 7"]).returncode, 7)
            self.assertEqual(subprocess.run(["sh", "-n"], input=container["args"][0], text=True).returncode, 0)
        self.assertEqual({p["port"] for p in service["spec"]["ports"]}, {3333})

    def test_words_stay_what_they_are(self):
        words = ["it's $(HOME)", "$$ $(x", "a\"b", "{a,b}", "#no comment", "--x={task_index}", "", "back\\slash: - |", "ü %d"]
        docs = self.write("--", "printf", "<%s>", *words)
        line = expand(docs[3]["spec"]["template"]["spec"]["containers"][0]["args"][0], {"HOME": "/wrong"})
        command = re.search(r" -- \\\n(.*)\n", line)[1]
        self.assertEqual(subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout, "".join(f"<{w}>" for w in words))

    def test_wrong_words(self):
        self.assertIn("--name", self.write("--name", "Not_A_Label", code=1))
        self.assertIn("--name", self.write("--name", "x" * 60, code=1))
        self.assertIn("--image", self.write("--image", "a b", code=1))
        self.assertIn("line break", self.write("--", "sh", "-c", "a\nb", code=1))


if __name__ == "__main__":
    unittest.main()
