"""What a compiled model costs on ranks, beside `model.fit` and beside processes without communication.

  fit        samples a second of one rank (TrainingDriver) with AdamW, clipping, accuracy and AUC from `compile`, both
             validated after each epoch, against `model.fit` of the same module; MLP and CNN
  allreduce  samples a second of two ranks with AdamW and clipping from `compile`, against the control: two lean loops
             (the compiled step and the optimizer of the package, no communication) side by side; CNN
  own        the same with Adamax, which Keras itself runs, against two `model.fit` side by side; CNN
  memory     peak memory of a rank that trains, divided by that of `model.fit`: measured in each part

All processes of a repeat are new, and run in turns of a quarter of a second (turns.py). README.md tells how to read the
line.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import training_runs as runs
from training import Findings
from turns import Contestant, rate, take_turns

MODEL = "compiled"
N_VALIDATION = 1_000
#: the least ratio of samples a second, and the limit of that of peak memories
LEAST = {"fit": 0.97, "allreduce": 0.95, "own": 0.95}
MOST_MEMORY = 1.1


@dataclass(frozen=True)
class Part:
    """Ranks, and what they are compared with."""

    name: str
    network: str
    n_train: int
    n_validation: int
    #: seconds that everything runs in a repeat
    seconds: float
    n_ranks: int
    options: tuple[object, ...]
    #: processes that run together; the first reference is the one to reach, the last one tells the memory of `fit`
    references: dict[str, tuple[str, ...]]
    optimizer: str = "AdamW"


ALLREDUCE = ("--mode", "allreduce")
BESIDE_FIT = {"fit": ("fit",)}
BESIDE_LOOPS, BESIDE_FITS = {"control": ("lean", "lean"), **BESIDE_FIT}, {"two_fits": ("fit", "fit")}
PARTS = (
    Part("fit", "mlp", 60_000, N_VALIDATION, 15.0, 1, (), BESIDE_FIT),
    Part("fit", "cnn", 3_000, N_VALIDATION, 20.0, 1, (), BESIDE_FIT),
    # Each rank and each loop without communication has as many samples; one process by `fit` tells the memory.
    Part("allreduce", "cnn", 6_000, 0, 20.0, 2, ALLREDUCE, BESIDE_LOOPS),
    Part("own", "cnn", 6_000, 0, 20.0, 2, ALLREDUCE, BESIDE_FITS, "Adamax"),
)
QUICK = (
    Part("fit", "mlp", 4_000, N_VALIDATION, 5.0, 1, (), BESIDE_FIT),
    Part("allreduce", "mlp", 4_000, 0, 5.0, 2, ALLREDUCE, BESIDE_LOOPS),
    Part("own", "mlp", 4_000, 0, 5.0, 2, ALLREDUCE, BESIDE_FITS, "Adamax"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="(default: 6; quick: 1)")
    parser.add_argument("--parts", nargs="+", choices=list(LEAST), default=list(LEAST), help="(default: all)")
    parser.add_argument("--quick", action="store_true", help="only to see that it runs: one short repeat of the MLP")
    arguments = parser.parse_args()
    repeats = arguments.repeats or (1 if arguments.quick else 6)
    where, found = h.machine(), Findings()
    with h.temporary_folder() as folder:
        for part in QUICK if arguments.quick else PARTS:
            if part.name in arguments.parts:
                measure(part, repeats, folder / f"{part.name}-{part.network}", found)
    results = {
        "batch": runs.BATCH,
        "n_repeats": repeats,
        "quick": arguments.quick,
        "others_cpu_percent": h.spread(found.others_percent, 3),
        **found.results,
    }
    h.report("compiled", results, found.targets, where)


def measure(part: Part, repeats: int, folder: Path, found: Findings) -> None:
    """Ratios of one part, each by the figures of the same repeat."""
    os.environ["BENCHMARK_NETWORK"], os.environ["BENCHMARK_OPTIMIZER"] = part.network, part.optimizer
    os.environ["BENCHMARK_SAMPLES"] = f"{part.n_train} {part.n_validation}"
    base, name = next(iter(part.references)), f"{part.network}_{part.name}"
    rates: list[dict[str, float]] = []
    memories: list[dict[str, float]] = []
    for repeat in range(repeats):
        found.look_around()
        now, peaks = measure_once(part, folder / str(repeat))
        rates.append(now)
        memories.append(peaks)
        h.say(f"{name}: { ({key: round(value) for key, value in now.items()}) } samples/s, {peaks} MB at the most")
    for key in rates[0]:
        found.add(f"{name}_{key}_samples_per_s", [now[key] for now in rates])
    for key in memories[0]:
        found.add(f"{name}_{key}_peak_mb", [peaks[key] for peaks in memories])
    found.add(f"{name}_ratio_to_{base}", [now["ranks"] / now[base] for now in rates], LEAST[part.name])
    ratios = [peaks["ranks"] / peaks[[*part.references][-1]] for peaks in memories]
    found.add(f"{name}_memory_ratio_to_fit", ratios)
    found.targets[f"{name}_memory_ratio_to_fit"] = ("<", MOST_MEMORY, statistics.median(ratios))


def measure_once(part: Part, folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Samples a second of ranks and references, and the peak memory in MB of one process of each."""
    folder.mkdir(parents=True)
    contestants: dict[str, Contestant] = {}
    pids: dict[str, list[int]] = {}
    with ExitStack() as stack:
        # What has begun is stopped while the next begins.
        for name, kinds in part.references.items():
            loops = [stack.enter_context(runs.Loop(kind, MODEL, None, folder)) for kind in kinds]
            pids[name] = [loop.pid for loop in loops]
            contestants[name] = stack.enter_context(Contestant(pids[name], [loop.stamps for loop in loops]))
        training = stack.enter_context(runs.Training(MODEL, None, part.n_ranks, part.options, folder / "ranks"))
        pids["ranks"] = training.pids
        contestants["ranks"] = stack.enter_context(Contestant(training.pids, [training.stamps]))
        take_turns(list(contestants.values()), part.seconds)
        made = {name: rate(contestant.made()) for name, contestant in contestants.items()}
        return made, {name: peak_mb(of) for name, of in pids.items()}


def peak_mb(pids: Iterable[int]) -> float:
    """The largest resident memory that any of the processes has had."""
    status = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    peaks = [int(text.partition("VmHWM:")[2].split()[0]) for text in status]
    return h.rounded(max(peaks) * 1024 / 1e6)


if __name__ == "__main__":
    main()
