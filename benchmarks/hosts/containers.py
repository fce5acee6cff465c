"""The Dockerfiles of containers/ without Docker: their steps in a plain Debian, then a search on two such nodes.

debootstrap lays a Debian into a folder, much as the image that FROM names is made. Each RUN runs in it by chroot, each
COPY copies what .dockerignore lets pass. Two nodes with a network, host name and processes of their own see this folder
under a layer of their own, as containers see their image, and run the CMD, which is sshd. The user of the image starts
`mpirun` with the hostfile of containers/ on the first node, which reaches the second one by ssh.

What this proves: the packages exist and install, the commands of all steps work in this order, keys, ports and paths
suffice for mpirun to start ranks on another node, and a search runs on both. What it does not prove: that Docker takes
the files, what its image of Debian lacks (debian:12-slim is a little smaller), its limits and networks, and other
processors than this machine's. The last line is one JSON object.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import nodes
from harness import ROOT, say
from nodes import Nodes

from nnlo_opt.app.reporting.results import read_ledger

HERE = Path(__file__).parent
NODES = Nodes(bridge="nnlo-box", network="10.80.0", names=("nnlo-1", "nnlo-2"))
COMMANDS = {"debootstrap": "debootstrap", "chroot": "coreutils", "setpriv": "util-linux"}
SUITES = {"debian:12-slim": "bookworm"}
BUILD_S, SEARCH_S, N_TRIALS = 1500, 120, 12
#: what Docker's image of Debian has, too: a package that is installed starts no service
NO_SERVICES = "#!/bin/sh\nexit 101\n"
#: certificates of this machine, which may reach the package index by a proxy
CERTIFICATES = "/run/host-certificates"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: root file system of an image or a container as $1; then the words of a command
INSIDE = """
mount --rbind /dev "$1/dev"; mount --rbind /sys "$1/sys"; mount -t proc proc "$1/proc"; mount -t tmpfs tmpfs "$1/run"
mkdir -p "$1/run/sshd" "$1$CERTIFICATES"; mount --bind /etc/ssl/certs "$1$CERTIFICATES"
cat /etc/resolv.conf > "$1/etc/resolv.conf"; cat /etc/hosts > "$1/etc/hosts"
root=$1; shift
"""
#: a node, with a layer of its own over the image $2
NODE = (
    'mount -t overlay overlay -o "lowerdir=$2,upperdir=$1.upper,workdir=$1.work" "$1"; mount -t tmpfs tmpfs /dev/shm\n'
    'mkdir -p "$1/home/nnlo/work"; mount --bind "$3" "$1/home/nnlo/work"\n'
    'set -- "$1" "${@:4}"' + INSIDE + 'chroot "$root" "$@" & wait $!'
)


@dataclass(slots=True)
class Image:
    """A Dockerfile and the folder in which its steps have been done."""

    root: Path
    steps: list[tuple[str, str]]
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH, "HOME": "/root"})
    command: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path, root: Path) -> "Image":
        """Read the steps; a backslash at the end of a line joins the next one."""
        lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
        joined = "\n".join(lines).replace("\\\n", " ").splitlines()
        image = cls(root, [])
        for line in filter(str.strip, joined):
            word, rest = line.split(maxsplit=1)
            image.steps.append((word.upper(), rest))
            if word.upper() == "ENV":
                name, _, value = rest.partition("=")
                image.environment[name] = value
            elif word.upper() == "CMD":
                image.command = json.loads(rest)
        return image

    def build(self, base: Path, context: Path) -> list[str]:
        """Do all steps; return the RUN steps with their seconds. SystemExit if one fails."""
        done = []
        for word, rest in self.steps:
            begun_s = time.monotonic()
            say(f"{word} {rest}")
            match word:
                case "FROM":
                    make_base(base, SUITES[rest])
                    subprocess.run(["cp", "-a", f"{base}/.", self.root], check=True)
                case "RUN":
                    self._run(rest, context.parent / "build.log")
                    done.append(f"{time.monotonic() - begun_s:.0f} s: {rest}")
                case "COPY":
                    self._copy(shlex.split(rest), context)
                case "WORKDIR":
                    assert rest == "/", "another working directory is not played here"
                case "LABEL" | "EXPOSE" | "ENV" | "CMD":
                    pass
                case _:
                    raise SystemExit(f"{word} is not played here")
        return done

    def _run(self, line: str, log_path: Path) -> None:
        variables = {
            **self.environment,
            "PIP_CERT": f"{CERTIFICATES}/ca-certificates.crt",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        words = ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), "/bin/sh", "-c", line]
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL"]
        script = "set -e; mount --make-rprivate /" + INSIDE + 'chroot "$root" "$@"'
        with log_path.open("a+") as log:
            log.write(f"RUN {line}\n")
            log.flush()
            done = subprocess.run(
                [*apart, "bash", "-c", script, "run", str(self.root), *words],
                env={**os.environ, "CERTIFICATES": CERTIFICATES},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=BUILD_S,
                check=False,
            )
            if done.returncode:
                log.seek(0)
                raise SystemExit(f"RUN {line}\n{log.read()[-3000:]}\nended with code {done.returncode}")

    def _copy(self, words: list[str], context: Path) -> None:
        *sources, target = words
        place = self.root / target.lstrip("/")
        if target.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        for source in sources:
            given = context / source
            if given.is_dir():
                shutil.copytree(given, place, dirs_exist_ok=True)
            else:
                shutil.copy(given, place)


def make_base(base: Path, suite: str) -> None:
    """Lay a Debian into a folder, unless it is there."""
    if not (base / "etc/os-release").exists():
        subprocess.run(["debootstrap", "--variant=minbase", suite, str(base)], check=True, stdout=sys.stderr)
    policy = base / "usr/sbin/policy-rc.d"
    policy.write_text(NO_SERVICES)
    policy.chmod(0o755)


def make_context(context: Path) -> None:
    """Copy what .dockerignore lets pass, with keys as the Dockerfile says they are made."""
    allowed = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    context.mkdir(parents=True)
    for name in allowed:
        source, no_bytecode = ROOT / name, shutil.ignore_patterns("__pycache__")
        if source.is_dir():
            shutil.copytree(source, context / name, ignore=no_bytecode)
        else:
            shutil.copy(source, context / name)
    key = context / "containers/id_ed25519"
    for old in (key, Path(f"{key}.pub")):
        old.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    shutil.copy(f"{key}.pub", context / "containers/authorized_keys")


@contextmanager
def containers(image: Image, folder: Path, work: Path) -> Iterator[dict[str, int]]:
    """Run the image's CMD on two nodes; yield the process id of each; all of them end with the block."""
    NODES.remove()
    daemons = {}
    try:
        NODES.make()
        for name in NODES.names:
            root = folder / name
            for path in (root, Path(f"{root}.upper"), Path(f"{root}.work")):
                path.mkdir()
            words = NODES.enter(name, NODE, str(root), str(image.root), str(work), *image.command)
            with (folder / f"{name}.log").open("ab") as log:
                daemons[name] = subprocess.Popen(
                    words,
                    env={**os.environ, "CERTIFICATES": CERTIFICATES},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        time.sleep(3)
        for name, daemon in daemons.items():
            if daemon.poll() is not None:
                raise SystemExit(f"{name}: {image.command} has ended: {(folder / f'{name}.log').read_text()}")
        yield {name: first_child(daemon.pid) for name, daemon in daemons.items()}
    finally:
        for daemon in daemons.values():
            with suppress(ProcessLookupError):
                daemon.send_signal(signal.SIGKILL)
            daemon.wait()
        NODES.remove()


def first_child(pid: int) -> int:
    """Return the child of a process: the first process of a node is that of `unshare`."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def search(image: Image, folder: Path, pid: int, work: Path, mpi: str) -> str:
    """Run a search on both nodes from the first one, as the image's user; return what it prints."""
    shutil.copy(HERE / "slurm_objective.py", work / "objective.py")
    shutil.copy(ROOT / "containers" / f"hosts.{mpi}", work / "hostfile")
    subprocess.run(["chown", "-R", "1001:1001", str(work)], check=True)
    line = (
        "mpirun --hostfile hostfile -n 4 OptimizationDriver --model objective.py --hyper-opt random --checkpoint run "
        f"--num-iterations {N_TRIALS}"
    )
    variables = {**image.environment, "HOME": "/home/nnlo", "USER": "nnlo", "TRIAL_S": "0.3"}
    enter = ["nsenter", "--target", str(pid), "--mount", "--pid", "--uts", "--net", "chroot", str(folder / "nnlo-1")]
    as_user = ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups", "env", "-i"]
    as_user += [f"{name}={value}" for name, value in variables.items()]
    done = subprocess.run(
        [*enter, *as_user, "bash", "-c", f"cd /home/nnlo/work; hostname; {line}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SEARCH_S,
        check=False,
    )
    return f"nnlo@nnlo-1 $ {line}\n{done.stdout}[exit code {done.returncode}]\n"


def try_one(mpi: str, kept: Path, folder: Path) -> dict[str, Any]:
    """Build the image, unless `kept` has it, and search on two nodes of it; return what there is to say."""
    work, steps = folder / "work", kept / f"{mpi}.steps"
    work.mkdir(parents=True)
    image = Image.read(ROOT / "containers" / f"{mpi}.Dockerfile", kept / mpi)
    if not steps.exists():
        shutil.rmtree(image.root, ignore_errors=True)
        image.root.mkdir(parents=True)
        make_context(folder / "context")
        steps.write_text("\n".join(image.build(kept / "base", folder / "context")))
    with containers(image, folder, work) as pids:
        text = search(image, folder, pids["nnlo-1"], work, mpi)
    say(text)
    ledger = read_ledger(work / "checkpoints" / "run")
    hosts = set((work / "hosts").read_text().split())
    passed = ledger.complete and ledger.n_by_state()["complete"] == N_TRIALS and hosts == set(NODES.names)
    return {"passed": passed, "hosts": sorted(hosts), "text": f"{steps.read_text()}\n\n{text}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpi", nargs="+", choices=["openmpi", "mpich"], default=["openmpi", "mpich"])
    parser.add_argument("--keep", type=Path, help="folder outside /tmp for Debian and images; what is there is used")
    parser.add_argument("--transcript", type=Path, help="text file for the steps and the terminals")
    arguments = parser.parse_args()
    if why := nodes.lacking_packages(COMMANDS) or nodes.missing():
        raise SystemExit(f"No containers on this machine: {why}.")
    found, texts = dict[str, dict[str, Any]](), list[str]()
    with tempfile.TemporaryDirectory(prefix="nnlo-containers-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        for mpi in arguments.mpi:
            found[mpi] = try_one(mpi, arguments.keep or Path(name), Path(name) / f"{mpi}.trial")
            texts.append(f"## {mpi}.Dockerfile\n\n{found[mpi].pop('text')}")
    if arguments.transcript:
        arguments.transcript.write_text("\n".join(texts))
    print(json.dumps({"benchmark": "containers", **found}))
    return 0 if all(one["passed"] for one in found.values()) else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
