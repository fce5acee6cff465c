"""How fast and how well the block trainer trains, against what one core and this machine could do at the best.

Parts, each against references of the same repeat:
  inner      samples a second of the training loop; references: `model.fit`, the lean loop (one process, the compiled
             step and the optimizer of the package, no communication), the control (as many lean loops side by side
             as there are workers) and the control in step (had these waited for each other after every batch)
  horovod    samples a second of two ranks of `nnlo_opt.allreduce`, against two `model.fit` side by side; controls: two
             more of these, and two that wait for each other after each batch, which is the limit of equal steps
  reference  the same against the reference's protocol rebuilt, MLP only
  whole      seconds from start to end with HDF5, validation and checkpoints, against a `model.fit` script on one core
  accuracy   validation accuracy after equal samples, every update rule against one process

Update rules that the installed package refuses are left out, and listed in `not_measured`. README.md tells how to read
the line.
"""

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import psutil
import training_runs as runs
from turns import Contestant, rate, rate_in_step, take_turns

PARTS = ("inner", "horovod", "reference", "whole", "accuracy")
#: an idle machine uses less than this before and between our runs
IDLE_PERCENT = 10.0
#: least samples a second of two ranks of `nnlo_opt.allreduce`, as a part of two plain fits
HOROVOD = {"mlp": 0.90, "cnn": 0.95}
#: workers of the whole runs and of the accuracy
N_WORKERS = 2


@dataclass(frozen=True)
class Sizes:
    """How long one model is measured."""

    #: training samples of each worker and loop, which are an epoch: long beside a fence, where workers wait for each
    #: other, and short beside `seconds`
    n_train: int
    #: seconds that everything runs in a repeat
    seconds: float
    #: training samples and epochs of a whole run; None: there is none
    whole: tuple[int, int] | None = None


SIZES = {
    "mlp": Sizes(80_000, 5.0, whole=(60_000, 15)),
    "cnn": Sizes(3_000, 15.0, whole=(4_000, 6)),
    "lstm": Sizes(8_000, 10.0),
}
QUICK_SIZES = {
    "mlp": Sizes(4_000, 1.0, whole=(4_000, 2)),
    "cnn": Sizes(500, 3.0, whole=(500, 1)),
    "lstm": Sizes(1_000, 3.0),
}
#: training samples, epochs, seeds
ACCURACY, QUICK_ACCURACY = (20_000, 8, 3), (8_000, 2, 1)


@dataclass(frozen=True)
class Configuration:
    """One way to run the trainer."""

    name: str
    n_ranks: int
    #: ranks that compute gradients
    n_workers: int
    options: tuple[object, ...]
    #: model -> reference -> the least ratio to it; a model that is not here is not measured
    targets: dict[str, dict[str, float]]


EASGD = ("--mode", "easgd", "--sync-every", 10)
ALLREDUCE = ("--mode", "allreduce")
CONFIGURATIONS = (
    Configuration(
        "downpour_1_worker",
        2,
        1,
        (),
        {
            "mlp": {"lean": 0.98, "fit": 1.0, "protocol_1_worker": 3.0},
            "cnn": {"lean": 0.98, "fit": 1.0},
            "lstm": {},
        },
    ),
    Configuration(
        "downpour_2_workers",
        3,
        2,
        (),
        {"mlp": {"control": 0.88, "protocol_2_workers": 3.0}, "cnn": {"control": 0.95}, "lstm": {}},
    ),
    # The table of seeds/002 is of EASGD every 10 batches.
    Configuration("easgd_1_worker", 2, 1, EASGD, {"lstm": {"lean": 0.99}}),
    Configuration(
        "easgd_2_workers", 3, 2, EASGD, {"mlp": {"control": 0.95}, "cnn": {"control": 0.97}, "lstm": {"control": 0.95}}
    ),
    Configuration("allreduce_2_ranks", 2, 2, ALLREDUCE, {"mlp": {"control": 0.95}, "cnn": {"control": 0.97}}),
)
#: workers of two ranks, which `versions.py` measures
GROUPS = tuple(
    Configuration(f"{n}_group{'s' * (n > 1)}_of_2", 1 + 2 * n, n, ("--n-processes", 2), {"mlp": {}}) for n in (1, 2)
)
#: references of a configuration by its number of workers, where they are measured
REFERENCES = {1: ("lean", "fit", "protocol_1_worker"), 2: ("control", "lean", "protocol_2_workers")}

#: rule -> ranks and options, for the accuracy
RULES: dict[str, tuple[int, tuple[object, ...]]] = {
    "downpour": (1 + N_WORKERS, ()),
    "downpour_synchronous": (1 + N_WORKERS, ("--synchronous",)),
    "easgd": (1 + N_WORKERS, EASGD),
    "gem": (1 + N_WORKERS, ("--mode", "gem")),
    "allreduce": (N_WORKERS, ALLREDUCE),
}
#: how far the accuracy of a rule may be below that of one process, in points
LEAST_DIFFERENCE, LEAST_WHOLE_RATIO = -1.0, 1.7


@dataclass
class Findings:
    """What goes into the line."""

    results: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, h.Target] = field(default_factory=dict)
    #: what could not be measured -> what the package said
    refused: dict[str, str] = field(default_factory=dict)
    #: percent of all cores that others used, before every repeat
    others_percent: list[float] = field(default_factory=list)

    def add(self, name: str, values: list[float], least: float | None = None) -> None:
        """Repeated measurements, and the least their median may be."""
        self.results[name] = h.spread(values)
        if least is not None:
            self.targets[name] = (">=", least, statistics.median(values))

    def look_around(self) -> None:
        """Note what others use of the machine; to be called while nothing of ours runs."""
        self.others_percent.append(psutil.cpu_percent(interval=1.0))
        if self.others_percent[-1] > IDLE_PERCENT:
            h.say(f"Others use {self.others_percent[-1]:.0f} % of this machine: these numbers will not be valid.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, help="(default: 10; quick: 1)")
    parser.add_argument("--models", nargs="+", choices=list(SIZES), help="(default: all; quick: mlp)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(default: all)")
    parser.add_argument("--messages", action="store_true", help="send every update, as blocks over several nodes do")
    parser.add_argument("--quick", action="store_true", help="only to see that it runs: one short repeat")
    arguments = parser.parse_args()
    quick = arguments.quick
    repeats = arguments.repeats or (1 if quick else 10)
    models = arguments.models or (["mlp"] if quick else list(SIZES))
    where, found = h.machine(), Findings()
    found.look_around()
    with h.temporary_folder() as folder:
        for model in models:
            sizes = (QUICK_SIZES if quick else SIZES)[model]
            if {"inner", "reference"} & set(arguments.parts):
                plan = Plan.of(model, arguments.parts, by_messages=arguments.messages)
                measure_loops(model, sizes, plan, repeats, folder / model, found)
            if "horovod" in arguments.parts and model in HOROVOD:
                measure_horovod(model, sizes, repeats, folder / f"{model}-horovod", found)
        if "whole" in arguments.parts:
            measure_whole(models, QUICK_SIZES if quick else SIZES, repeats, folder / "whole", found)
        if "accuracy" in arguments.parts and "mlp" in models:
            measure_accuracy(*(QUICK_ACCURACY if quick else ACCURACY), folder / "accuracy", found)
    results = {
        "batch": runs.BATCH,
        "n_repeats": repeats,
        "quick": quick,
        "others_cpu_percent": h.spread(found.others_percent, 3),
        **found.results,
        "not_measured": found.refused,
    }
    h.report("training", results, found.targets, where)


# ---------------------------------------------------------------- the training loop


@dataclass(frozen=True)
class Plan:
    """What of a model's training loop is measured."""

    configurations: list[Configuration]
    #: against the reference's protocol too
    with_protocol: bool

    @classmethod
    def of(cls, model: str, parts: Iterable[str], *, by_messages: bool) -> "Plan":
        """For these `parts`; `by_messages`: every update is sent."""
        how = ("--exchange", "messages") if by_messages else ()
        configurations = [replace(c, options=(*c.options, *how)) for c in CONFIGURATIONS if model in c.targets]
        if "inner" not in parts:
            configurations = [c for c in configurations if any("protocol" in r for r in c.targets[model])]
        return cls(configurations, "reference" in parts and model == "mlp")


def measure_loops(model: str, sizes: Sizes, plan: Plan, repeats: int, folder: Path, found: Findings) -> None:
    """Samples a second of every configuration and reference, and their ratios, repeat by repeat."""
    data = {n: runs.make_data(folder / f"data-{n}", n * sizes.n_train) for n in (1, 2)}
    rates: dict[str, list[float]] = {}
    for repeat in range(repeats):
        found.look_around()
        now = measure_once(model, data, sizes.seconds, plan.configurations, folder / str(repeat), found)
        if plan.with_protocol:
            for n, name in ((1, "protocol_1_worker"), (2, "protocol_2_workers")):
                now[name] = runs.run_protocol(model, data[n], n, sizes.seconds, folder / f"{name}-{repeat}")
        for name, value in now.items():
            rates.setdefault(name, []).append(value)
        h.say(f"{model}: { ({name: round(value) for name, value in now.items()}) } samples/s")
    for name, values in rates.items():
        found.add(f"{model}_{name}_samples_per_s", values)
    add_ratios(model, rates, plan.configurations, found)


def measure_once(
    model: str,
    data: Mapping[int, runs.Data],
    seconds: float,
    configurations: Sequence[Configuration],
    folder: Path,
    found: Findings,
) -> dict[str, float]:
    """Samples a second of all references and configurations, each in turns of so many seconds together.

    All processes are new: where in memory one lies makes it 2 % faster or slower, for as long as it lives.
    """
    folder.mkdir()
    contestants: dict[str, Contestant] = {}
    with ExitStack() as stack:
        # What has begun is stopped while the next begins.
        for name, kinds in {"fit": ["fit"], "lean": ["lean"], "control": ["lean", "lean"]}.items():
            loops = [stack.enter_context(runs.Loop(kind, model, data[1], folder)) for kind in kinds]
            together = Contestant([loop.pid for loop in loops], [loop.stamps for loop in loops])
            contestants[name] = stack.enter_context(together)
            found.results |= {f"{model}_{key}": value for key, value in loops[0].said.items()}
        for c in configurations:
            try:
                training = runs.Training(model, data[c.n_workers], c.n_ranks, c.options, folder / c.name)
            except runs.Refused as refusal:
                found.refused[f"{model}_{c.name}"] = str(refusal)
                continue
            stack.enter_context(training)
            contestants[c.name] = stack.enter_context(Contestant(training.pids, [training.stamps]))
        take_turns(list(contestants.values()), seconds)
        made = {name: contestant.made() for name, contestant in contestants.items()}
    return {**{name: rate(of) for name, of in made.items()}, "control_in_step": rate_in_step(made["control"])}


def measure_horovod(model: str, sizes: Sizes, repeats: int, folder: Path, found: Findings) -> None:
    """Samples a second of two ranks that average gradients, and of three times two plain fits.

    The last ones are ranks, too, which wait for each other after each batch.
    """
    data = runs.make_data(folder / "data", sizes.n_train)
    ranks_of = {"horovod_2_ranks": (), "two_fits_that_meet": ("--meet",)}
    rates: dict[str, list[float]] = {name: [] for name in (*ranks_of, "two_fits", "two_more_fits")}
    for repeat in range(repeats):
        found.look_around()
        place = folder / str(repeat)
        place.mkdir()
        contestants: list[Contestant] = []
        with ExitStack() as stack:
            for name, options in ranks_of.items():
                ranks = stack.enter_context(runs.HorovodTraining(model, data, 2, place / name, *options))
                contestants.append(stack.enter_context(Contestant(ranks.pids, ranks.makers)))
            for _ in range(2):
                fits = [stack.enter_context(runs.Loop("fit", model, data, place)) for _ in range(2)]
                contestant = Contestant([fit.pid for fit in fits], [fit.stamps for fit in fits])
                contestants.append(stack.enter_context(contestant))
            take_turns(contestants, 2 * sizes.seconds)
            for values, contestant in zip(rates.values(), contestants, strict=True):
                values.append(rate(contestant.made()))
        h.say(f"{model}: { ({name: round(values[-1]) for name, values in rates.items()}) } samples/s")
    for name, values in rates.items():
        found.add(f"{model}_{name}_samples_per_s", values)
    ratios = (
        ("horovod_2_ranks", "two_fits", HOROVOD[model]),
        ("horovod_2_ranks", "two_fits_that_meet", None),
        ("two_fits_that_meet", "two_fits", None),
        ("two_more_fits", "two_fits", None),
    )
    for name, base, least in ratios:
        values = [value / of_base for value, of_base in zip(rates[name], rates[base], strict=True)]
        found.add(f"{model}_{name}_ratio_to_{base}", values, least)


def add_ratios(
    model: str, rates: dict[str, list[float]], configurations: Iterable[Configuration], found: Findings
) -> None:
    """The ratios of one model, each by the figures of the same repeat."""

    def add(name: str, reference: str, least: float | None = None) -> None:
        if name in rates and reference in rates:
            ratios = [value / base for value, base in zip(rates[name], rates[reference], strict=True)]
            found.add(f"{model}_{name}_ratio_to_{reference}", ratios, least)

    add("fit", "lean")
    add("control", "lean")
    add("control_in_step", "control")
    for c in configurations:
        in_step = ("control_in_step",) if "allreduce" in c.options else ()
        for reference in (*REFERENCES[c.n_workers], *in_step):
            add(c.name, reference, c.targets[model].get(reference))


# ---------------------------------------------------------------- whole runs


def measure_whole(models: list[str], sizes: dict[str, Sizes], repeats: int, folder: Path, found: Findings) -> None:
    """Seconds from start to end, and their ratios after the import of the framework is taken off both sides."""
    wholes = {model: sizes[model].whole for model in models}
    plans = {
        model: (runs.make_data(folder / model / "data", whole[0]), whole[1]) for model, whole in wholes.items() if whole
    }
    took: dict[str, dict[str, list[float]]] = {model: {"fit": [], "ours": []} for model in plans}
    imports_s: list[float] = []
    for repeat in range(repeats):
        found.look_around()
        imports_s.append(runs.import_s())
        for model, (data, n_epochs) in plans.items():
            place = folder / model / str(repeat)
            took[model]["fit"].append(runs.whole_fit_s(model, data, n_epochs, place / "fit"))
            took[model]["ours"].append(runs.whole_training_s(model, data, 1 + N_WORKERS, n_epochs, place / "ours"))
            h.say(f"{model}: whole run { ({side: round(v[-1], 1) for side, v in took[model].items()}) } s")
    if plans:
        found.add("framework_import_s", imports_s)
    for model, sides in took.items():
        pairs = list(zip(sides["fit"], sides["ours"], imports_s, strict=True))
        found.add(f"{model}_whole_fit_s", sides["fit"])
        found.add(f"{model}_whole_{N_WORKERS}_workers_s", sides["ours"])
        found.add(f"{model}_whole_ratio_with_import", [fit / ours for fit, ours, _ in pairs])
        found.add(f"{model}_whole_ratio", [(fit - i) / (ours - i) for fit, ours, i in pairs], LEAST_WHOLE_RATIO)


# ---------------------------------------------------------------- accuracy


def measure_accuracy(n_train: int, n_epochs: int, n_seeds: int, folder: Path, found: Findings) -> None:
    """Validation accuracy of the MLP under every rule, in points above one process with the same seed."""
    data = runs.make_data(folder / "data", n_train)
    found.results |= {"accuracy_n_samples": n_train * n_epochs}
    accuracies: dict[str, list[float]] = {}
    for name, (n_ranks, options) in {"single_process": (1, ()), **RULES}.items():
        try:
            accuracies[name] = [
                runs.validation_accuracy(
                    data, n_ranks, (*options, "--epochs", n_epochs, "--seed", seed), folder / f"{name}-{seed}"
                )
                for seed in range(n_seeds)
            ]
        except runs.Refused as refusal:
            found.refused[f"accuracy_{name}"] = str(refusal)
            continue
        h.say(f"accuracy of {name}: {[round(value, 2) for value in accuracies[name]]} %")
        found.add(f"mlp_accuracy_{name}_percent", accuracies[name])
    single = accuracies.pop("single_process")
    for name, values in accuracies.items():
        key = f"mlp_accuracy_{name}_points_above_single"
        differences = [value - base for value, base in zip(values, single, strict=True)]
        found.results[key] = h.spread(differences, 3)
        # Three seeds have no median worth the name: their mean is judged.
        found.targets[f"{key}_mean"] = (">=", LEAST_DIFFERENCE, statistics.fmean(differences))


if __name__ == "__main__":
    main()
