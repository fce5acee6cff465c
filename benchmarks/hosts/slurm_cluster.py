"""A real Slurm of four nodes on one machine, without touching the machine's own files of Slurm and munge.

Each node has a network, a host name, processes, /tmp and /dev/shm of its own, and runs a real `slurmd`. So nothing that
runs on a node can mistake another node for its own. The folder of the cluster, like all other files, is shared by the
nodes, as a cluster's file system is. Needs root, iproute2, util-linux, and Debian's packages slurm-wlm and munge.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import nodes
from harness import ROOT
from nodes import Nodes

N_NODES, CPUS = 4, 4
NODES = tuple(f"n{number}" for number in range(1, N_NODES + 1))
NETWORK = Nodes(bridge="nnlo-slurm", network="10.79.0", names=NODES)
#: packages of Debian with the commands of a cluster
COMMANDS = {"slurmctld": "slurm-wlm", "slurmd": "slurm-wlm", "munged": "munge"}
READY_S = 60.0
#: preempted jobs of the partition `low` run on for so many seconds
GRACE_S = 20
CONF = """\
ClusterName=nnlo
SlurmctldHost={host}({network}.254)
SlurmUser=root
AuthType=auth/munge
# A requeued job waits cred_expire seconds before it starts again: 120 if nothing is said.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=2,sched_interval=5,sched_min_interval=1000000
ReturnToService=2
KillWait=5
SlurmdTimeout=20
MessageTimeout=5
MinJobAge=3600
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{preempt}
{nodes}
PartitionName=low Nodes=n[1-{n}] Default=YES PriorityTier=1 GraceTime={grace} PreemptMode=REQUEUE OverSubscribe=NO
PartitionName=high Nodes=n[1-{n}] PriorityTier=10 PreemptMode=OFF OverSubscribe=NO
"""
#: first process of a node: reaps what is left over, and ends, with the node's processes, when `slurmd` does. $1: folder
#: of the cluster; behind it folders in /tmp that all nodes see
NODE = """
for path in "${@:2}"; do
    mkdir -p "$1/$0$path"
    mount --bind "$path" "$1/$0$path"
done
mount --rbind "$1/$0/tmp" /tmp
mount -t tmpfs tmpfs /dev/shm
slurmd -D -N "$0" -f "$1/slurm.conf" </dev/null >"$1/$0/out" 2>&1 &
wait $!
"""


def missing() -> str:
    """Return why there can be no cluster here; "" if there can."""
    return nodes.lacking_packages(COMMANDS) or nodes.missing()


@contextmanager
def slurm(folder: Path, *, late_signal: bool = False) -> Iterator["Cluster"]:
    """Run a cluster in `folder`; afterwards none of its processes, namespaces or devices is left.

    `late_signal`: a job that is preempted gets its user signal at the end of the grace time, as by default.
    """
    cluster = Cluster(folder, late_signal=late_signal)
    cluster.remove()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


class Cluster:
    """Four nodes, n1 to n4, with `slurmctld` and `munged` beside them.

    Args:
        folder: an absolute path outside /tmp, which each node has for itself; kept, with the daemons' logs.
        late_signal: as of `slurm`.
    """

    def __init__(self, folder: Path, *, late_signal: bool = False) -> None:
        self.folder = folder
        # Later versions call it PreemptParameters=send_user_signal.
        self._preempt = "" if late_signal else "SlurmctldParameters=preempt_send_user_signal"
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        #: environment of the commands of Slurm
        self.environment: Mapping[str, str] = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start network, daemons and nodes; return when all nodes are idle."""
        self._lay_files()
        NETWORK.make()
        munged = [nodes.which("munged"), "--foreground", f"--socket={self.folder}/munge.socket"]
        munged += [f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._start("munged", *munged)
        self._until("munged listens", (self.folder / "munge.socket").exists)
        self._start("slurmctld", nodes.which("slurmctld"), "-D", "-c", "-f", str(self.folder / "slurm.conf"))
        for node in NODES:
            self.start_node(node)
        self._until("all nodes are idle", lambda: self.states() == dict.fromkeys(NODES, "idle"))

    def start_node(self, node: str) -> None:
        """Start the node's `slurmd`, with all that makes it a node of its own."""
        needed = {str(path) for path in (ROOT, sys.prefix, sys.base_prefix) if Path(path).is_relative_to("/tmp")}
        self._start(node, *NETWORK.enter(node, NODE, str(self.folder), *sorted(needed)))

    def kill_node(self, node: str) -> None:
        """Kill all processes of a node at once: the first one takes the rest with it."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()

    def states(self) -> dict[str, str]:
        """Return the state of each node by its name, as `sinfo` prints it."""
        words = self.output("sinfo", "--noheader", "-N", "-p", "low", "-o", "%N %t", check=False).split()
        return dict(zip(words[::2], words[1::2], strict=False))

    def output(self, *command: str, check: bool = True, cwd: Path | None = None) -> str:
        """Return what a command of Slurm prints, errors included; RuntimeError if it fails and `check` is set."""
        done = subprocess.run(
            command,
            env=self.environment,
            cwd=cwd,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=300,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(command)}: code {done.returncode}: {done.stdout}")
        return done.stdout

    def job(self, job: str, field: str) -> str:
        """Return one field of a job as `scontrol show job` prints it."""
        words = self.output("scontrol", "show", "job", job).split()
        return next((word.partition("=")[2] for word in words if word.startswith(field + "=")), "")

    def remove(self) -> None:
        """End what was started, the nodes with all their processes first; remove the network."""
        for name in list(self._daemons):
            daemon = self._daemons.pop(name)
            daemon.send_signal(signal.SIGKILL if name in NODES else signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        NETWORK.remove()

    def _lay_files(self) -> None:
        (self.folder / "state").mkdir(parents=True, exist_ok=True)
        for node in NODES:
            for part in ("spool", "tmp"):
                (self.folder / node / part).mkdir(parents=True, exist_ok=True)
            (self.folder / node / "tmp").chmod(0o1777)  # like any /tmp: jobs of other users write there
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        own = f"CPUs={CPUS} RealMemory=2000 State=UNKNOWN"
        lines = [f"NodeName={node} NodeAddr={NETWORK.address(node)} NodeHostname={node} {own}" for node in NODES]
        conf = CONF.format(
            host=socket.gethostname(),
            network=NETWORK.network,
            folder=self.folder,
            preempt=self._preempt,
            nodes="\n".join(lines),
            n=N_NODES,
            grace=GRACE_S,
        )
        (self.folder / "slurm.conf").write_text(conf)
        # Without it slurmd looks for control groups, though no plugin above uses them, and a node has none.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _start(self, name: str, *command: str | None) -> None:
        log = self.folder / f"{name}.out"
        with log.open("ab") as out:
            words = [word for word in command if word is not None]
            self._daemons[name] = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + READY_S
        while not is_so():
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    log = self.folder / f"{name}.out"
                    raise RuntimeError(f"{name} has ended with code {daemon.returncode}: {log.read_text()[-2000:]}")
            if time.monotonic() >= deadline_s:
                raise RuntimeError(f"not within {READY_S:g} s: {what}; logs are in {self.folder}")
            time.sleep(0.2)
