"""Kills, again and again, what a search is made of, and looks whether anything was lost or done twice.

Every run is a search under `nnlo-opt launch`, of a light objective or of a perceptron on MNIST, synchronous or not,
that is struck one to three times at random moments: kill -9 of workers, masters, the coordinator, the search process,
the reporter, mpirun, several ranks, the whole job, or the launcher; ranks that are stopped for a while; blows while it
recovers from another.
Then its journal is compared with what the evaluations wrote down themselves and with an undisturbed run.

    python benchmarks/resilience/chaos.py --runs 500 --shard 3/20 --keep DIR
"""

import argparse
import json
import random
import shlex
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import chaos_check as check
import harness as h
from chaos_run import HERE, Outcome, Run, Setting, draw_blows, hits_by_kind

#: how likely each kind of blow is
WEIGHTS = {
    "worker": 3.0,
    "master": 3.0,
    "coordinator": 3.0,
    "search": 1.5,
    "reporter": 0.5,
    "mpirun": 1.5,
    "several": 2.0,
    "job": 1.0,
    "launcher": 0.5,
    "pause": 1.5,
}
#: of MPICH, which has one on every node; Open MPI's is mpirun itself on its own node
DAEMON = {"daemon": 1.0}
#: with `--watchdog` only: nothing else ends a rank that is stopped for good
FREEZE = {"freeze": 3.0}
N_BLOWS = 3
#: numbers, lists of seconds, and dictionaries of these
Tally = dict[str, Any]
#: `training` is synchronous, so that its figures can be compared with those of an undisturbed run
N_TRIALS = {"objective": (8, 20), "training": (3, 5), "asynchronous": (6, 10)}
#: (ranks, block size): blocks of one, two and three ranks, also a smaller last one
SHAPES = {
    "objective": [(3, 1), (3, 2), (4, 1), (5, 2), (6, 2), (7, 2), (7, 3)],
    "training": [(3, 2), (5, 2), (4, 3)],
    "asynchronous": [(4, 3), (5, 4)],
}


def main() -> None:
    options = _parse()
    where = h.machine()
    if options.add:
        lines = [json.loads(line) for path in options.add for line in path.read_text().splitlines()]
        if not lines:
            raise SystemExit("--add must name files with lines that this script has printed. Received: none there.")
        tallies = [{name: line[name] for name in tally([])} for line in lines]
        show(add_up(tallies), {"shards": len(lines)}, where)
        return
    first, n_shards = options.shard
    until_s = time.monotonic() + 60 * options.minutes
    outcomes: list[tuple[int, Outcome]] = []
    with h.temporary_folder() as folder:
        keep = options.keep or folder / "keep"
        keep.mkdir(parents=True, exist_ok=True)
        for number in range(first, options.runs, n_shards):
            if time.monotonic() >= until_s:
                break
            outcomes.append((number, disturbed(options, number, folder, keep)))
    show(tally(outcomes), {"kind": options.kind, "mpi": options.mpi, "seed": options.seed}, where)


def show(total: Tally, what: dict[str, Any], where: dict[str, Any]) -> None:
    """Print the one line."""
    spreads = {name: h.spread(values, 3) for name, values in sorted(total["seconds"].items())}
    h.report("chaos", {**what, **total, "spread_s": spreads}, targets_of(total), where)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="of all shards together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--shard", type=_shard, default=(0, 1), metavar="I/N", help="every N-th run from the I-th, from 0"
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after that")
    parser.add_argument("--kind", choices=list(SHAPES), default="objective")
    parser.add_argument("--backend", choices=["tensorflow", "jax", "torch"], default="tensorflow", help="of trainings")
    parser.add_argument(
        "--only", nargs="+", choices=[*WEIGHTS, *DAEMON, *FREEZE], metavar="KIND", help="kinds of blows"
    )
    parser.add_argument("--mpi", choices=["openmpi", "mpich"], default="openmpi")
    parser.add_argument("--mpi-prefix", type=Path, help="where bin/mpiexec and lib/libmpi.so of MPICH are")
    parser.add_argument(
        "--watchdog", default="", metavar="OPTIONS", help="the driver's, by which stopped ranks are ended"
    )
    parser.add_argument(
        "--limit", type=float, default=90.0, metavar="SECONDS", help="what takes longer after a blow hangs"
    )
    parser.add_argument(
        "--keep", type=Path, help="folder for undisturbed runs, which shards share, and for runs that failed"
    )
    parser.add_argument(
        "--add", type=Path, nargs="+", metavar="FILE", help="run nothing: add up the lines in these files"
    )
    options = parser.parse_args()
    if options.mpi == "mpich" and not (options.mpi_prefix and (options.mpi_prefix / "bin/mpiexec").exists()):
        parser.error("--mpi mpich needs --mpi-prefix DIR with bin/mpiexec, such as a virtual environment with mpich")
    return options


def _shard(text: str) -> tuple[int, int]:
    i, n = map(int, text.split("/"))
    if not 0 <= i < n:
        raise argparse.ArgumentTypeError("must be I/N with I from 0 to N - 1")
    return i, n


# ---------------------------------------------------------------- one run


def disturbed(options: argparse.Namespace, number: int, folder: Path, keep: Path) -> Outcome:
    """Run number `number` of the seed, disturbed and judged."""
    rng = random.Random(f"{options.seed}-{options.kind}-{number}")
    n_ranks, block_size = rng.choice(SHAPES[options.kind])
    setting = setting_of(options, n_ranks, block_size, rng.randint(*N_TRIALS[options.kind]), keep)
    expected = reference(options, setting, folder, keep)
    weights = WEIGHTS | (FREEZE if options.watchdog else {}) | (DAEMON if options.mpi == "mpich" else {})
    if options.only:
        weights = {kind: (WEIGHTS | FREEZE | DAEMON)[kind] for kind in options.only}
    blows = draw_blows(rng, setting, weights, N_BLOWS)
    place = folder / f"run-{number}"
    place.mkdir()
    h.say(f"run {number}: {n_ranks} ranks, blocks of {block_size}, {[(b.kind, b.n_complete) for b in blows]}")
    began_s = time.monotonic()
    run = Run(setting, place)
    outcome = run.disturb(blows)
    if outcome.complete and not outcome.hung:
        problems = check.check(outcome.events, run.evaluations(), expected, setting.n_trials)
        problems.lost += outcome.problems.lost
        outcome.problems = problems
    bad = _verdict(outcome)
    h.say(f"  {time.monotonic() - began_s:.1f} s, hit by {[hit.kind for hit in outcome.hits]}: {bad or 'sound'}")
    if bad:
        shutil.copytree(place, keep / f"failed-{options.kind}-{options.seed}-{number}", dirs_exist_ok=True)
    shutil.rmtree(place, ignore_errors=True)
    return outcome


def setting_of(options: argparse.Namespace, n_ranks: int, block_size: int, n_trials: int, keep: Path) -> Setting:
    """What is run; the same points in the same order whatever the ranks."""
    setting = Setting(
        kind=options.kind,
        n_ranks=n_ranks,
        block_size=block_size,
        n_trials=n_trials,
        options=("--seed", "7", *shlex.split(options.watchdog)),
        limit_s=options.limit,
    )
    if options.kind == "objective":
        setting = replace(setting, options=("--model", str(HERE / "chaos_objective.py"), *setting.options))
    else:
        data = keep / "mnist"
        if not data.exists():
            h.make_mnist(data, "--source", "bundled", "--n-samples", 700, "--n-train-files", 2, "--n-test-files", 1)
        model = ("--model", str(HERE / "chaos_mlp.py"), "--figure-of-merit", "figure")
        if options.kind == "training":
            model = (*model, "--synchronous")
        lists = ("--train-data", str(data / "train_mnist.list"), "--val-data", str(data / "test_mnist.list"))
        training = ("--epochs", "2", "--batch", "50", "--keras-backend", options.backend)
        setting = replace(setting, options=(*model, *lists, *training, *setting.options))
    if options.mpi == "mpich":
        prefix = options.mpi_prefix.resolve()
        variables = (("MPI4PY_MPIABI", "mpich"), ("LD_LIBRARY_PATH", str(prefix / "lib")))
        setting = replace(setting, launcher=("--mpirun", str(prefix / "bin/mpiexec")), variables=variables)
    return setting


def reference(options: argparse.Namespace, setting: Setting, folder: Path, keep: Path) -> dict[str, Any]:
    """What the undisturbed search gives, and how long its start takes; made once for all shards."""
    any_ranks = setting.kind == "objective"
    shape = "any" if any_ranks else f"{options.backend}-{setting.block_size}"
    path = keep / f"undisturbed-{setting.kind}-{shape}.json"
    if not path.exists():
        place = folder / "undisturbed"
        place.mkdir()
        most = N_TRIALS[setting.kind][1]
        n_ranks = setting.n_ranks if any_ranks else 1 + setting.block_size
        run = Run(replace(setting, n_trials=most, n_ranks=n_ranks, limit_s=600.0), place)
        outcome = run.disturb([])
        if not outcome.complete:
            raise SystemExit(f"The undisturbed run failed:\n{(place / 'output.txt').read_text()[-3000:]}")
        found = check.outcomes(outcome.events, any_ranks=any_ranks)
        problems = check.check(outcome.events, run.evaluations(), found, most)
        if problems.lost or problems.twice or problems.wrong or len(found) != most:
            raise SystemExit(f"The undisturbed run is not sound: {problems}")
        if setting.kind == "asynchronous":  # the points are the same, the figures never
            found = {trial: one | {"n_ranks": 0} for trial, one in found.items()}
        path.write_text(json.dumps(found))
        shutil.rmtree(place)
    return json.loads(path.read_text())


def _verdict(outcome: Outcome) -> dict[str, Any]:
    """What is wrong; empty where nothing is."""
    problems = asdict(outcome.problems)
    bad: dict[str, Any] = {kind: problems[kind] for kind in ("lost", "twice", "wrong") if problems[kind]}
    if outcome.hung:
        bad["hung"] = True
    elif not outcome.complete:
        bad["not complete"] = True
    if outcome.left:
        bad["left"] = outcome.left
    return bad


# ---------------------------------------------------------------- all runs


def tally(numbered: Sequence[tuple[int, Outcome]]) -> Tally:
    """What can be added up over shards: numbers, and seconds one by one."""
    outcomes = [outcome for _, outcome in numbered]
    problems = [outcome.problems for outcome in outcomes]
    seconds: dict[str, list[float]] = {}
    for outcome in outcomes:
        for name, took_s in [("startup", _startup_s(outcome)), *_recoveries_s(outcome)]:
            if took_s is not None:
                seconds.setdefault(name, []).append(h.rounded(took_s, 3))
    return {
        "runs": len(outcomes),
        "runs_struck": sum(bool(outcome.hits) for outcome in outcomes),
        "hits": sum(len(outcome.hits) for outcome in outcomes),
        "hits_by_kind": hits_by_kind(outcomes),
        "missed": sum(len(outcome.missed) for outcome in outcomes),
        "lost": sum(len(found.lost) for found in problems),
        "twice": sum(len(found.twice) for found in problems),
        "wrong": sum(len(found.wrong) for found in problems),
        "hangs": sum(outcome.hung for outcome in outcomes),
        "not_complete": sum(not outcome.complete and not outcome.hung for outcome in outcomes),
        "left_behind": sum(len(outcome.left) for outcome in outcomes),
        "trials": sum(e["event"] == "TrialCompleted" for outcome in outcomes for e in outcome.events),
        "trials_compared": sum(found.n_compared for found in problems),
        "evaluations_repeated": sum(found.n_repeated for found in problems),
        "evaluations_at_once": sum(found.n_at_once for found in problems),
        "trials_given_up": sum(found.n_given_up for found in problems),
        "launcher_gave_up": sum(outcome.n_gave_up for outcome in outcomes),
        "restarts": sum(max(0, _n_starts(outcome) - 1) for outcome in outcomes),
        "seconds": seconds,
        "failed_runs": {str(number): bad for number, outcome in numbered if (bad := _verdict(outcome))},
    }


def add_up(tallies: Sequence[Tally]) -> Tally:
    """The tally of all of them."""
    total: Tally = {}
    for one in tallies:
        for name, value in one.items():
            if isinstance(value, dict):
                total[name] = (
                    add_up([total.get(name, {}), value]) if name != "failed_runs" else total.get(name, {}) | value
                )
            else:
                total[name] = total[name] + value if name in total else value
    return total


def targets_of(total: Tally) -> dict[str, h.Target]:
    """Nothing lost, nothing twice, nothing stuck; and how soon the work goes on, less what any start takes."""
    none = ("lost", "twice", "wrong", "hangs", "not_complete", "left_behind")
    targets: dict[str, h.Target] = {name: ("<", 1.0, float(total[name])) for name in none}
    seconds = total["seconds"]
    startup_s = statistics.median(seconds.get("startup", [0.0]))
    for kind, limit_s in (("coordinator", 30.0), ("worker", 5.0), ("master", 5.0)):
        values = [s - startup_s for s in seconds.get(f"{kind}_restarted", [])] + seconds.get(f"{kind}_in_place", [])
        if values:
            targets[f"{kind}_recovery_beyond_startup_s"] = ("<", limit_s, statistics.median(values))
    return targets


def _recoveries_s(outcome: Outcome) -> list[tuple[str, float]]:
    """From each blow until the trials that it hit train again; not where another blow came before."""
    found = []
    for i, hit in enumerate(outcome.hits):
        recovery = check.recovery_s(outcome.events, hit.unix_s, hit.blocks)
        following = outcome.hits[i + 1].unix_s if i + 1 < len(outcome.hits) else float("inf")
        if recovery is not None and hit.kind not in ("pause", "reporter") and following > hit.unix_s + recovery[0]:
            took_s, in_place = recovery
            found.append((f"{hit.kind}_{'in_place' if in_place else 'restarted'}", took_s))
    return found


def _startup_s(outcome: Outcome) -> float | None:
    """From the first start of the launcher to the first fold that began; None where a blow came before."""
    began = next((e for e in outcome.events if e["event"] == "FoldBegan"), None)
    if began is None:
        return None
    unix_s = check.unix_0(outcome.events) + began["time_s"]
    early = [hit for hit in outcome.hits if hit.unix_s < unix_s]
    return None if early else unix_s - outcome.began_unix_s


def _n_starts(outcome: Outcome) -> int:
    return sum(event["event"] == "RunStarted" for event in outcome.events)


if __name__ == "__main__":
    main()
