"""A real Slurm on this machine: a controller and N nodes, each with a host name, an address and a port space of its own (network and UTS namespaces on a bridge).

    with SlurmCluster(nodes=2, cpus=4) as c:
        c.run("srun", "-N2", "-n8", "hostname")

Needs root and the packages of tools/packages.txt [slurm]. The machine's own /etc/hosts, munge and Slurm configuration are not touched; everything is gone afterwards.
"""
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
import tempfile
import time

CONF = """ClusterName=trainera
SlurmctldHost=ctl({net}.250)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MpiParams=ports=12000-12999
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdTimeout=60
KillWait=5
"""


def available():
    return os.geteuid() == 0 and all(shutil.which(p, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") for p in ("srun", "slurmctld", "slurmd", "munged", "ip", "nsenter", "unshare"))


class SlurmCluster:
    def __init__(self, nodes=2, cpus=4):
        self.tag = f"t{os.getpid() % 10000}"  # several test runs side by side
        self.net = f"10.77.{os.getpid() % 200 + 10}"
        self.nodes, self.cpus = [f"node{i + 1}" for i in range(nodes)], cpus
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="trainera-slurm-"))
        self.env = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "SLURM_CONF": str(self.dir / "slurm.conf")}

    def sh(self, *cmd, check=True):
        r = subprocess.run(cmd, capture_output=True, text=True, env=self.env)
        if check and r.returncode:
            raise RuntimeError(f"{' '.join(cmd)}: {r.stderr}")
        return r

    def at(self, node, *cmd):
        """The command line that runs `cmd` as that node. nsenter, not `ip netns exec`, which would hide the cgroup file systems that slurmd asks for."""
        return ["nsenter", f"--net=/run/netns/{self.tag}-{node}", "unshare", "--mount", "--uts", "sh", "-c",
                f'mount --bind {self.dir}/hosts /etc/hosts; hostname {node}; exec "$@"', "sh", *cmd]

    def run(self, *cmd, timeout=120, **kw):
        return subprocess.run(self.at("ctl", *cmd), capture_output=True, text=True, env={**self.env, **kw.pop("env", {})}, timeout=timeout, **kw)

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def start(self):
        d = self.dir
        d.chmod(0o755)
        for name in ("state", "spool", "log", "munge"):
            (d / name).mkdir(mode=0o755)
        (d / "munge.key").write_bytes(secrets.token_bytes(1024))
        (d / "munge.key").chmod(0o400)
        self.sh("munged", "--force", f"--socket={d}/munge/socket", f"--key-file={d}/munge.key", f"--pid-file={d}/munged.pid", f"--log-file={d}/log/munged.log",
                f"--seed-file={d}/munge/seed")
        self.sh("ip", "link", "add", f"{self.tag}br", "type", "bridge")
        self.sh("ip", "link", "set", f"{self.tag}br", "up")
        hosts = ["127.0.0.1 localhost", f"{self.net}.250 ctl"]
        for i, node in enumerate(["ctl", *self.nodes]):
            a = f"{self.net}.{i or 250}"
            ns = f"{self.tag}-{node}"
            self.sh("ip", "netns", "add", ns)
            self.sh("ip", "link", "add", f"{self.tag}v{i}", "type", "veth", "peer", "name", "eth0", "netns", ns)
            self.sh("ip", "link", "set", f"{self.tag}v{i}", "master", f"{self.tag}br", "up")
            self.sh("ip", "-n", ns, "addr", "add", f"{a}/24", "dev", "eth0")
            self.sh("ip", "-n", ns, "link", "set", "eth0", "up")
            self.sh("ip", "-n", ns, "link", "set", "lo", "up")
            if i:
                hosts.append(f"{a} {node}")
        (d / "hosts").write_text("\n".join(hosts) + "\n")
        conf = CONF.format(net=self.net, dir=d)
        for i, node in enumerate(self.nodes):
            (d / "spool" / node).mkdir()
            conf += f"NodeName={node} NodeAddr={self.net}.{i + 1} CPUs={self.cpus} RealMemory=2000 State=UNKNOWN\n"
        conf += f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4\n"
        (d / "slurm.conf").write_text(conf)
        (d / "cgroup.conf").write_text("")
        self.sh(*self.at("ctl", "slurmctld", "-c"))
        time.sleep(1)
        for node in self.nodes:
            self.sh(*self.at(node, "slurmd", "-N", node))
        for _ in range(120):
            if self.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == str(len(self.nodes)):
                return self
            time.sleep(0.5)
        raise RuntimeError("Slurm does not come up: " + self.run("sinfo").stdout + (d / "log/slurmctld.log").read_text()[-2000:])

    def __exit__(self, *exc):
        self.sh(*self.at("ctl", "scancel", "--state=RUNNING"), check=False)
        for pid_file in sorted(self.dir.glob("*.pid"), key=lambda p: "munge" in p.name):
            try:
                os.kill(int(pid_file.read_text()), signal.SIGTERM)
            except (OSError, ValueError):
                pass
        time.sleep(1)
        for node in ["ctl", *self.nodes]:
            self.sh("ip", "netns", "del", f"{self.tag}-{node}", check=False)
        self.sh("ip", "link", "del", f"{self.tag}br", check=False)
        shutil.rmtree(self.dir, ignore_errors=True)
