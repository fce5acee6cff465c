"""Two hosts on one machine: network namespaces joined by a cable, between which ranks speak TCP.

`mpirun` starts its daemon on the other host by an agent that enters the namespace, so that no sshd is needed.
"""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nnlo_opt.testing.mpirun import find_mpirun
from tests.helpers import launcher

HOSTS = ("nnlo-host-1", "nnlo-host-2")
AGENT = """#!/bin/bash
# ssh [-p PORT] HOST COMMAND...: the host is a network namespace, with a name of its own
while [[ $1 == -* ]]; do [[ $1 == -p ]] && { echo "port $2" >> "$0.ports"; shift; }; shift; done
host=$1; shift
case $host in 10.78.0.*) host=nnlo-host-${host##*.};; esac
exec ip netns exec "$host" unshare --uts /bin/bash -c "hostname $host; exec /bin/bash -c $(printf %q "$*")"
"""
#: seconds after which a daemon that is not heard of is given up; by default it takes minutes
KEEPALIVE = {"time": 3, "intvl": 1, "probes": 3}
#: the ranks of two hosts talk by TCP
TRANSPORT = ("--mca", "btl", "self,sm,tcp", "--mca", "pml", "ob1")


def missing() -> str:
    """Why there cannot be two hosts here; empty where there can."""
    if os.geteuid() != 0:
        return "needs root"
    if any(shutil.which(command) is None for command in ("ip", "unshare", "hostname")):
        return "needs iproute2 and util-linux"
    version = subprocess.run([find_mpirun() or "false", "--version"], capture_output=True, text=True, check=False)
    if "Open MPI" not in version.stdout:
        return "needs Open MPI, whose daemons are told where to go"
    if not _try("ip", "netns", "add", "nnlo-probe"):
        return "may not make network namespaces"
    links = _try("ip", "-n", "nnlo-probe", "link", "add", "name", "probe0", "type", "veth", "peer", "name", "probe1")
    _try("ip", "netns", "del", "nnlo-probe")
    return "" if links else "may not make network devices"


@contextmanager
def two_hosts(folder: Path) -> Iterator["Hosts"]:
    """The hosts, with all that runs on them gone afterwards."""
    hosts = Hosts(folder)
    hosts.remove()
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


class Hosts:
    """The two of them, numbered from 1."""

    def __init__(self, folder: Path) -> None:
        self._agent = folder / "agent"

    def make(self) -> None:
        self._agent.write_text(AGENT)
        self._agent.chmod(0o755)
        for host in HOSTS:
            _run("ip", "netns", "add", host)
        ends = ("eth0", "type", "veth", "peer", "name", "eth0", "netns", HOSTS[1])
        _run("ip", "-n", HOSTS[0], "link", "add", *ends)
        for number, host in enumerate(HOSTS, 1):
            _run("ip", "-n", host, "addr", "add", _address(number) + "/24", "dev", "eth0")
            _run("ip", "-n", host, "link", "set", "eth0", "up")
            _run("ip", "-n", host, "link", "set", "lo", "up")
            names = Path("/etc/netns") / host
            names.mkdir(parents=True, exist_ok=True)
            lines = ["127.0.0.1 localhost", *(f"{_address(n)} {name}" for n, name in enumerate(HOSTS, 1))]
            (names / "hosts").write_text("\n".join(lines) + "\n")

    def remove(self) -> None:
        for number, host in enumerate(HOSTS, 1):
            self.kill(number)
            _try("ip", "netns", "del", host)
            shutil.rmtree(Path("/etc/netns") / host, ignore_errors=True)

    def cut(self) -> None:
        """What one sends does not reach the other any more, and nobody is told: it goes to a device nobody has."""
        for number, host in enumerate(HOSTS, 1):
            nobody = (_address(3 - number), "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
            _run("ip", "-n", host, "neigh", "replace", *nobody)

    def join(self) -> None:
        """As it was before `cut`."""
        for number, host in enumerate(HOSTS, 1):
            _run("ip", "-n", host, "neigh", "del", _address(3 - number), "dev", "eth0")

    def pids(self, number: int) -> list[int]:
        """What runs on the host."""
        done = subprocess.run(["ip", "netns", "pids", HOSTS[number - 1]], capture_output=True, text=True, check=False)
        return [int(pid) for pid in done.stdout.split()]

    def kill(self, number: int) -> int:
        """Everything on the host dies at once; -> how many processes. The host itself stays."""
        pids = self.pids(number)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def launch(self, number: int, slots: tuple[int, int], driver: list[str], folder: Path) -> launcher.Job:
        """`nnlo-opt launch` on host `number`, with so many ranks on each host; its own has the first ones."""
        order = (HOSTS[number - 1], HOSTS[2 - number])
        options = ["-n", str(sum(slots)), "--mpirun", self._mpirun(dict(zip(order, slots, strict=True)))]
        command = [str(launcher.BIN / "nnlo-opt"), "launch", *options, "--", *driver]
        return launcher.Job(1, [str(self._agent), order[0], shlex.join(command)], folder)

    def doctor(self, interface: str, timeout_s: int, folder: Path) -> launcher.Job:
        """`nnlo-opt doctor` on the first host, for three ranks whose messages take a network interface."""
        mpirun = self._mpirun({HOSTS[0]: 2, HOSTS[1]: 1}, interface)
        options = ["-n", "3", "--timeout", str(timeout_s), "--mpirun", mpirun]
        words = ["env", f"PATH={launcher.BIN}:{os.environ['PATH']}", str(launcher.BIN / "nnlo-opt"), "doctor", *options]
        return launcher.Job(1, [str(self._agent), HOSTS[0], shlex.join([*words, str(folder)])], folder)

    def horovodrun(self, slots: tuple[int, int], command: list[str], folder: Path) -> launcher.Job:
        """`horovodrun` on the first host, with so many ranks on each host."""
        hosts = folder / "hosts"
        hosts.write_text("".join(f"{host} slots={n}\n" for host, n in zip(HOSTS, slots, strict=True)))
        words = [str(launcher.BIN / "horovodrun"), "-np", str(sum(slots)), "--hostfile", str(hosts), "-p", "2222"]
        words += ["--network-interface", "eth0", f"--mpi-args={shlex.join([*self._daemons(), *TRANSPORT])}"]
        words = ["env", f"PATH={launcher.BIN}:{os.environ['PATH']}", *words]
        return launcher.Job(1, [str(self._agent), HOSTS[0], shlex.join([*words, *command])], folder)

    @property
    def ports(self) -> set[str]:
        """The ports at which the agent was asked to connect."""
        path = Path(f"{self._agent}.ports")
        return set(path.read_text().splitlines()) if path.exists() else set()

    def _mpirun(self, slots: dict[str, int], interface: str = "eth0") -> str:
        """The words of mpirun for so many ranks on each host."""
        words = ["mpirun", *self._daemons(), "--prtemca", "oob_tcp_if_include", "eth0"]
        words += ["--mca", "btl_tcp_if_include", interface, *TRANSPORT]
        words += ["--host", ",".join(f"{host}:{n}" for host, n in slots.items()), "--map-by", "slot:oversubscribe"]
        return " ".join([*words, "-x", "PATH", "-x", "PYTHONPATH"])

    def _daemons(self) -> list[str]:
        """Options by which mpirun starts its daemons."""
        settings = {
            "prte_keep_fqdn_hostnames": "0",
            "plm_ssh_agent": str(self._agent),
            "plm_ssh_no_tree_spawn": "1",
            **{f"oob_tcp_keepalive_{name}": str(value) for name, value in KEEPALIVE.items()},
        }
        return [word for name, value in settings.items() for word in ("--prtemca", name, value)]


def _address(number: int) -> str:
    return f"10.78.0.{number}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _try(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
