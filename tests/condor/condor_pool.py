"""A real HTCondor on this machine: a pool of two hosts, in a Debian 13 of its own (Debian 12 has no HTCondor).

    with CondorPool(slots=4, mounts={"/opt/trainera": build}) as pool:
        pool.run("condor_status")          as the user `peer`, in his home folder

The Debian is made by debootstrap, once, and kept in tests/.cache/condor-root; packages come from where this machine's own come from. The pool runs in namespaces
of its own (processes, mounts, network, host name): it sees nobody, nobody's ports are taken, and when it is closed the kernel ends whatever is left in it. The
second host, and others for tests that want some, have the same files and users, but a network of their own. An sshd is there, too. Needs root and the packages of tools/packages.txt [condor].
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

SUITE = "trixie"
# Beside HTCondor: what our programs are linked with, what a Python of the machine needs, and ssh.
PACKAGES = ["htcondor", "procps", "openssh-server", "openssh-client", "libnghttp2-14", "libprotobuf-c1", "libjansson4", "zlib1g", "libpng16-16t64", "libjpeg62-turbo", "libffi8", "libssl3t64",
            "libbz2-1.0", "liblzma5", "libsqlite3-0", "libexpat1", "libreadline8t64", "libuuid1"]
ROOT = pathlib.Path(__file__).resolve().parents[1] / ".cache" / "condor-root"
USER = "peer"

CONF = """CONDOR_HOST = 10.78.0.1
COLLECTOR_HOST = 10.78.0.1:9618
COLLECTOR_NAME = trainera
NETWORK_INTERFACE = 10.78.0.*
NO_DNS = True
ENABLE_IPV6 = False
DEFAULT_DOMAIN_NAME = local
UID_DOMAIN = local
FILESYSTEM_DOMAIN = local
TRUST_UID_DOMAIN = True
DAEMON_LIST = MASTER, COLLECTOR, NEGOTIATOR, SCHEDD, STARTD
USE_SHARED_PORT = False
use security:host_based
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
SEC_DEFAULT_AUTHENTICATION = OPTIONAL
SEC_DEFAULT_AUTHENTICATION_METHODS = FS, CLAIMTOBE, ANONYMOUS
SEC_DEFAULT_ENCRYPTION = OPTIONAL
SEC_DEFAULT_INTEGRITY = OPTIONAL
NUM_CPUS = {slots}
MEMORY = {memory}
NUM_SLOTS = {slots}
NUM_SLOTS_TYPE_1 = {slots}
SLOT_TYPE_1 = cpus=1
SLOT_TYPE_1_PARTITIONABLE = False
START = True
SUSPEND = False
PREEMPT = False
KILL = False
WANT_SUSPEND = False
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
SCHEDD_MIN_INTERVAL = 1
UPDATE_INTERVAL = 5
RUNBENCHMARKS = False
BASE_CGROUP =
MOUNT_UNDER_SCRATCH =
"""

# The first process of the pool. It ends with the pipe that is its standard input.
INIT = r"""set -e
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --bind /sys "$root/sys"
mount --bind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir -m 755 "$root/run/condor" "$root/run/sshd" "$root/run/lock" "$root/run/lock/condor"
shift
while [ $# -gt 0 ]; do
    mount --bind "$2" "$root$1"
    mount -o remount,ro,bind "$root$1"
    shift 2
done
hostname condor
ip link set lo up
ip link add net0 type bridge
ip addr add 10.78.0.1/24 dev net0
ip link set net0 up
# This shell stays the first process: its `wait` also takes in the orphans of the others.
exec chroot "$root" /bin/sh -c 'chown condor:condor /run/condor /run/lock/condor; exec 3<&0; condor_master -f & { read -r end <&3; kill -KILL -1; } & echo ready; wait'
"""


def missing():
    """What keeps the pool from running here, or None."""
    if os.geteuid() != 0:
        return "needs root"
    gone = [p for p in ("debootstrap", "unshare", "nsenter", "ip", "chroot") if not shutil.which(p, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")]
    return f"no {', '.join(gone)}: tools/setup condor" if gone else None


def mirror():
    """Where this machine's own packages come from."""
    codename = re.search(r"^VERSION_CODENAME=(\S+)", pathlib.Path("/etc/os-release").read_text(), re.M)[1]
    uris = subprocess.run(["apt-get", "--print-uris", "update"], capture_output=True, text=True).stdout
    return re.search(rf"^'(\S+?)/dists/{codename}/InRelease'", uris, re.M)[1]


def make_root(say=print):
    """Makes the Debian if it is not there yet, or was made of other packages."""
    stamp = ROOT / "etc" / "trainera-packages"
    want = " ".join(PACKAGES)
    if stamp.exists() and stamp.read_text() == want:
        return
    begin, part = time.time(), ROOT.with_suffix(".part")
    say(f"making {ROOT} (Debian {SUITE} with HTCondor, 600 MB; once)")
    for old in (ROOT, part):
        if old.exists():
            shutil.rmtree(old)
    part.parent.mkdir(exist_ok=True)
    env = {**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    # Services are not started while packages are installed; the mounts go with their namespace.
    script = (f"set -e; debootstrap --variant=minbase {SUITE} {part} {mirror()}; printf '#!/bin/sh\\nexit 101\\n' >{part}/usr/sbin/policy-rc.d; chmod 755 {part}/usr/sbin/policy-rc.d; "
              f"mount -t proc proc {part}/proc; mount --bind /dev {part}/dev; chroot {part} apt-get install -y --no-install-recommends {want}; chroot {part} apt-get clean; "
              f"chroot {part} useradd -m -s /bin/bash -p '*' {USER}; chroot {part} ssh-keygen -A")
    r = subprocess.run(["unshare", "--mount", "--pid", "--fork", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=1800)
    if r.returncode:
        raise RuntimeError(f"no Debian {SUITE}: exit {r.returncode}\n{r.stdout[-3000:]}")
    (part / "etc" / "trainera-packages").write_text(want)
    part.rename(ROOT)
    say(f"made in {time.time() - begin:.0f} s")


class CondorPool:
    def __init__(self, slots=4, mounts=None, hosts=()):
        """slots: on each of the two hosts. mounts: folders and files of this machine that are seen in the pool, read-only: {path there: path here}. hosts: more lines of /etc/hosts."""
        self.slots, self.mounts, self.hosts, self.process = slots, mounts or {}, hosts, None
        self.machines = []

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def start(self):
        make_root()
        etc = ROOT / "etc"
        (etc / "condor" / "config.d" / "50-trainera").write_text(CONF.format(slots=self.slots, memory=512 * self.slots))
        (etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", "10.78.0.1 condor", "10.78.0.2 condor2", *self.hosts, ""]))
        (etc / "ssh" / "sshd_config").write_text("PasswordAuthentication no\nStrictModes no\nUsePAM no\nSetEnv PATH=/opt/trainera:/usr/bin:/bin\n")
        var = ROOT / "var"
        for local in ("", "condor2/"):
            for old in ("log/condor", "spool/condor", "lib/condor/execute"):  # of an earlier pool
                shutil.rmtree(var / local / old, ignore_errors=True)
                (var / local / old).mkdir(parents=True)
        home = ROOT / "home" / USER
        shutil.rmtree(home)
        home.mkdir()
        for here, there in ((p, ROOT / p.lstrip("/")) for p in self.mounts):
            if pathlib.Path(self.mounts[here]).is_dir():
                there.mkdir(parents=True, exist_ok=True)
            else:
                there.parent.mkdir(parents=True, exist_ok=True)
                there.touch()
        subprocess.run(["chroot", ROOT, "sh", "-c", f"cd /var; mkdir -p condor2/run/condor condor2/lock/condor; chown -R condor:condor log/condor spool/condor condor2; chmod 1777 lib/condor/execute condor2/lib/condor/execute; chown {USER}: /home/{USER}; chmod 755 /root"],
                       check=True)
        binds = [str(x) for pair in self.mounts.items() for x in pair]
        self.process = subprocess.Popen(["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "sh", "-c", INIT, "init", str(ROOT), *binds],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.process.stdout.readline()
        if line.strip() != "ready":
            raise RuntimeError(f"the pool does not start: {line}{self.process.stdout.read()}")
        self.init = self.child(self.process.pid)
        self.nsenter = ["nsenter", f"--target={self.init}", "--mount", "--pid", "--net", "--uts", "--ipc", "--root", "--wd"]
        self.machine("condor2", "10.78.0.2", "env", "_CONDOR_DAEMON_LIST=MASTER, STARTD", "_CONDOR_LOCAL_DIR=/var/condor2", "condor_master", "-f")
        for _ in range(240):
            r = self.run("condor_status", "-af", "Name")
            if len(r.stdout.split()) == 2 * self.slots:
                return self
            time.sleep(0.5)
        raise RuntimeError(f"HTCondor does not come up: {r.stdout}{r.stderr}{(ROOT / 'var/log/condor/MasterLog').read_text()[-2000:]}")

    @staticmethod
    def child(pid):
        return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def enter(self, *cmd, user=USER):
        """The command line that runs `cmd` in the pool, as that user and in his home folder."""
        return [*self.nsenter, "runuser", "-l", user, "-c",
                'PATH=/opt/trainera:$PATH; exec "$@"', "--", "sh", *cmd]

    def run(self, *cmd, user=USER, timeout=120, **kw):
        return subprocess.run(self.enter(*cmd, user=user), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, **kw)

    def home(self):
        """The user's home folder, as seen from outside."""
        return ROOT / "home" / USER

    def processes(self):
        """{pid: command line} of everything that the user runs."""
        out = self.run("ps", "-u", USER, "-o", "pid=,args=", "ww", user="root").stdout
        return {int(pid): args for pid, args in (line.split(None, 1) for line in out.splitlines())}

    def machine(self, name, address, *daemon):
        """Another machine: a host name and a network of its own, beside the pool's on one bridge; the same files and users. The daemon, in the foreground, is what it runs."""
        p = subprocess.Popen([*self.nsenter, "unshare", "--net", "--uts", "sh", "-c", 'echo ready; read -r go; hostname "$1"; shift; exec "$@"', "sh", name, *daemon], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
        p.stdout.readline()
        pid = self.child(p.pid)
        for where, command in ((self.init, f"link add to{pid} type veth peer name eth0 netns {pid}"), (self.init, f"link set to{pid} master net0 up"), (pid, f"addr add {address}/24 dev eth0"),
                               (pid, "link set eth0 up"), (pid, "link set lo up")):
            subprocess.run(["nsenter", f"--target={where}", "--net", "ip", *command.split()], check=True)
        p.stdin.write("go\n")
        p.stdin.close()
        p.stdout.close()
        self.machines.append(p)

    def __exit__(self, *exc):
        if self.process is None:
            return
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()  # --kill-child: and the namespace's first process with it, and so all of them
            self.process.wait()
        self.process.stdout.close()
        for p in [*self.machines, self.process]:
            p.wait()
        self.process = None
