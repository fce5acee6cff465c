"""Nodes on one machine that speak TCP over a bridge: network namespaces, each with a name and a table of hosts."""

import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: packages of Debian with the commands that make nodes
COMMANDS = {"ip": "iproute2", "unshare": "util-linux"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """Nodes on a bridge, whose other end is this machine.

    Args:
        bridge: name of the bridge, with which the names of namespaces and devices begin; at most 12 letters.
        network: first three numbers of the addresses; this machine is 254.
        names: host names of the nodes, whose addresses are 1, 2, ...
    """

    bridge: str
    network: str
    names: Sequence[str]

    def make(self) -> None:
        """Make the bridge and the nodes, from which every node and this machine is reached by name."""
        _do("ip", "link", "add", self.bridge, "type", "bridge")
        _do("ip", "addr", "add", f"{self.network}.254/24", "dev", self.bridge)
        _do("ip", "link", "set", self.bridge, "up")
        hosts = ["127.0.0.1 localhost", f"{self.network}.254 {socket.gethostname()}"]
        hosts += [f"{self.address(name)} {name}" for name in self.names]
        for number, name in enumerate(self.names, 1):
            space, outer = self._space(name), f"{self.bridge}{number}"
            _do("ip", "netns", "add", space)
            _do("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
            _do("ip", "link", "set", outer, "master", self.bridge, "up")
            _do("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _do("ip", "-n", space, "link", "set", device, "up")
            table = _tables(space) / "hosts"  # shown on the node as /etc/hosts
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text("\n".join(hosts) + "\n")

    def remove(self) -> None:
        """Remove what `make` has made, or a part of it; processes of the nodes must have ended."""
        for number, name in enumerate(self.names, 1):
            quietly("ip", "link", "del", f"{self.bridge}{number}")  # with its namespace it would go some time later
            quietly("ip", "netns", "del", self._space(name))
            shutil.rmtree(_tables(self._space(name)), ignore_errors=True)
        quietly("ip", "link", "del", self.bridge)

    def address(self, name: str) -> str:
        """Return the address of a node."""
        return f"{self.network}.{self.names.index(name) + 1}"

    def enter(self, name: str, script: str, *arguments: str) -> list[str]:
        """Return the command that runs a bash script on a node as its first process, with which the rest ends.

        Host name, processes and mounts are the script's own.
        """
        apart = ["unshare", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
        inside = ["bash", "-c", f'set -e; hostname "$0"; mount --make-rprivate /; {script}', name, *arguments]
        return ["ip", "netns", "exec", self._space(name), *apart, *inside]

    def _space(self, name: str) -> str:
        return f"{self.bridge}-{name}"


def missing() -> str:
    """Return why there can be no nodes here; "" if there can."""
    if os.geteuid() != 0:
        return "needs root"
    if lacking := lacking_packages(COMMANDS):
        return lacking
    if quietly("ip", "netns", "add", "nnlo-probe") != 0:
        return "may not make network namespaces"
    has_link = quietly("ip", "-n", "nnlo-probe", "link", "add", "name", "probe0", "type", "bridge") == 0
    quietly("ip", "netns", "del", "nnlo-probe")
    return "" if has_link else "may not make network devices"


def lacking_packages(commands: dict[str, str]) -> str:
    """Return what installs those of `commands` (command: package of Debian) that are missing; "" if none is."""
    packages = dict.fromkeys(package for command, package in commands.items() if which(command) is None)
    return f"needs `apt-get install --no-install-recommends {' '.join(packages)}`" if packages else ""


def which(command: str) -> str | None:
    """Return the path of a command; daemons are in folders that a user's PATH may lack."""
    return shutil.which(command, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin")))


def quietly(*command: str) -> int:
    """Return the exit code of a command."""
    return subprocess.run(command, check=False, capture_output=True).returncode


def _tables(space: str) -> Path:
    return Path("/etc/netns") / space


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
