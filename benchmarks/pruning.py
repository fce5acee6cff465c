"""Time to the same figure with and without a pruner: on virtual learning curves, and on MNIST.

Virtual: the real `CoordinatorState` gives trials to blocks whose trainings are tables of a figure by epoch and take
virtual time: `overhead_s` to build a model (again after each pause) and a second an epoch. The search is random, so
that both sides try the same points. A curve is a power law, end + scale * epoch^-rate (Domhan et al., 2015), with
noise; ends are lognormal, rates vary, so that early figures tell something and not everything. Measured: when the
first trial is complete whose figure is no worse than the best of the run without a pruner.

Real: random searches of `examples/example_mlp.py` on real digits with and without `--pruner asha`, one block, the same
points on both sides; `--real-seeds 0` leaves them out. The figure to be reached is within 0.01 of the best one of the
search without a pruner.
"""

import argparse
import heapq
from pathlib import Path
from typing import Any

import harness as h
import numpy as np

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.instructions import Ask, Begin, Finish, FromMaster, SearchPlan, Send, Suggested
from nnlo_opt.coordinator.state import CoordinatorState
from nnlo_opt.report.results import read_ledger
from nnlo_opt.search.pruning import PruningPlan
from nnlo_opt.trials.ledger import Ledger

N_BLOCKS, N_TRIALS, N_EPOCHS = 8, 243, 81
PRUNERS = ("median", "asha", "hyperband")


def curves(seed: int) -> np.ndarray:
    """(N_TRIALS, N_EPOCHS) float64: a figure for every trial and epoch, to be minimised."""
    rng = np.random.default_rng(seed)
    ends = 0.02 * np.exp(rng.normal(1.0, 0.8, (N_TRIALS, 1)))
    scales, rates = rng.uniform(0.2, 0.9, (N_TRIALS, 1)), rng.uniform(0.4, 1.2, (N_TRIALS, 1))
    epochs = np.arange(1, N_EPOCHS + 1)
    values: np.ndarray = ends + scales * epochs**-rates
    return values * np.exp(0.03 * rng.normal(size=values.shape))


class VirtualRun:
    """Blocks that train by a virtual clock."""

    def __init__(self, pruner: str, values: np.ndarray, overhead_s: float) -> None:
        plan = None if pruner == "none" else PruningPlan(name=pruner, max_epochs=N_EPOCHS)
        self.ledger = Ledger()
        topology = Topology.plan(1 + N_BLOCKS, 1)
        self.state = CoordinatorState(SearchPlan(num_iterations=N_TRIALS, pruning=plan), topology, self.ledger)
        self.values = values
        self.overhead_s = overhead_s
        #: (when, order of sending, team, message to the coordinator)
        self.due: list[tuple[float, int, int, msg.Message]] = []
        self.n_sent = 0
        self.now_s = 0.0
        #: team -> order under way; (trial) -> epochs done
        self.order: dict[int, msg.RunFold] = {}
        self.epochs: dict[int, int] = {}
        self.n_epochs = 0
        self.over = False

    def run(self) -> None:
        self.feed(Begin())
        while not self.over:
            self.now_s, _, team, message = heapq.heappop(self.due)
            self.feed(FromMaster(team=team, message=message))
            order = self.order.get(team)
            if isinstance(message, msg.EpochReported) and order and not message.waits:
                trial = order.trial
                if self.epochs[trial] < N_EPOCHS:
                    self.train(team)
                else:
                    self.finish(team)

    def feed(self, event: Begin | Suggested | FromMaster) -> None:
        for instruction in self.state.handle(event, self.now_s):
            match instruction:
                case Ask():
                    self.feed(Suggested(point={"n": instruction.number}))
                case Send():
                    self.take(instruction.team, instruction.message)
                case Finish():
                    self.over = True

    def take(self, team: int, message: msg.Message) -> None:
        match message:
            case msg.RunFold():
                self.order[team] = message
                self.epochs.setdefault(message.trial, 0)
                self.train(team, self.overhead_s)
            case msg.GoOn():
                self.train(team)
            case msg.PauseFold():
                self.send(
                    team, msg.FoldPaused(assignment=message.assignment, epoch=self.epochs[self.order[team].trial])
                )
            case msg.StopFold():
                self.send(team, msg.FoldStopped(assignment=message.assignment))

    def train(self, team: int, more_s: float = 0.0) -> None:
        order = self.order[team]
        self.epochs[order.trial] = epoch = self.epochs[order.trial] + 1
        self.n_epochs += 1
        figure = float(self.values[order.trial, epoch - 1])
        waits = order.waits_for_word and epoch < N_EPOCHS
        reported = msg.EpochReported(
            assignment=order.assignment, epoch=epoch, metrics={}, figure_of_merit=figure, waits=waits
        )
        self.send(team, reported, 1.0 + more_s)

    def finish(self, team: int) -> None:
        order = self.order[team]
        finished = msg.FoldFinished(
            assignment=order.assignment,
            figure_of_merit=float(self.values[order.trial, -1]),
            metrics={},
            n_epochs=N_EPOCHS,
            train_s=float(N_EPOCHS),
        )
        self.send(team, finished)

    def send(self, team: int, message: msg.Message, after_s: float = 0.0) -> None:
        self.n_sent += 1
        heapq.heappush(self.due, (self.now_s + after_s, self.n_sent, team, message))


def reached_s(ledger: Ledger, figure: float) -> float | None:
    """When a trial with this figure or a better one was complete; None where none was."""
    times = [t.ended_at_s for t in ledger.trials if t.figure_of_merit is not None and t.figure_of_merit <= figure]
    return min((time_s for time_s in times if time_s is not None), default=None)


def virtual(n_seeds: int) -> dict[str, Any]:
    """How many times sooner each pruner has the best figure of the search without one, or one of its best three.

    A search that never has it counts as 0 times, and is counted.
    """
    sooner: dict[str, list[float]] = {}
    missed: dict[str, int] = {}
    for seed in range(n_seeds):
        values = curves(seed)
        plain = VirtualRun("none", values, overhead_s=2.0)
        plain.run()
        finals = np.sort(values[:, -1])
        for name in PRUNERS:
            pruned = VirtualRun(name, values, overhead_s=2.0)
            pruned.run()
            sooner.setdefault(f"virtual_{name}_share_of_epochs", []).append(pruned.n_epochs / plain.n_epochs)
            for kind, figure in (("best", float(finals[0])), ("best_three", float(finals[2]))):
                before, after = reached_s(plain.ledger, figure), reached_s(pruned.ledger, figure)
                assert before is not None
                key = f"virtual_{name}_{kind}"
                missed[f"{key}_missed"] = missed.get(f"{key}_missed", 0) + (after is None)
                sooner.setdefault(f"{key}_times_sooner", []).append(0.0 if after is None else before / after)
    return {**{key: h.spread(ratios, 3) for key, ratios in sooner.items()}, **missed}


def real(n_seeds: int) -> dict[str, Any]:
    """The same of real trainings; also the share of epochs, which no other load on the machine changes."""
    sooner, shares = [], []
    with h.temporary_folder() as folder:
        data = h.make_mnist(folder / "mnist", "--source", "bundled", "--n-samples", 2000)
        for seed in range(n_seeds):
            h.say(f"real searches, seed {seed}")
            plain = real_ledger(data, folder / f"plain-{seed}", seed)
            pruned = real_ledger(data, folder / f"asha-{seed}", seed, "--pruner", "asha")
            best = plain.best("min")
            assert best is not None
            assert best.figure_of_merit is not None
            figure = best.figure_of_merit + 0.01
            before, after = reached_s(plain, figure), reached_s(pruned, figure)
            shares.append(n_epochs(pruned) / n_epochs(plain))
            assert before is not None
            sooner.append(0.0 if after is None else (before - began_s(plain)) / (after - began_s(pruned)))
    return {
        "real_asha_share_of_epochs": h.spread(shares, 3),
        "real_asha_times_sooner": h.spread(sooner, 3),
        "real_asha_missed": sooner.count(0.0),
    }


def real_ledger(data: list[object], folder: Path, seed: int, *options: object) -> Ledger:
    """The ledger of a search of one block with these options."""
    arguments = ["--model", h.ROOT / "examples" / "example_mlp.py", *data, "--block-size", 1, "--epochs", 9]
    arguments += ["--search-space", h.ROOT / "search_spaces" / "mlp.py", "--num-iterations", 12, "--seed", seed]
    with h.Job("OptimizationDriver", 2, [*arguments, "--hyper-opt", "random", *options], folder, 900) as job:
        job.wait()
        return read_ledger(job.run_directory)


def n_epochs(ledger: Ledger) -> int:
    """Epochs trained, over all trials."""
    return sum(max(assignment.epoch for assignment in trial.assignments) for trial in ledger.trials)


def began_s(ledger: Ledger) -> float:
    """When the first trial began to train: what comes before, an import of a framework, is the same for both."""
    return min(a.started_at_s for a in ledger.assignments if a.started_at_s is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--real-seeds", type=int, default=3)
    arguments = parser.parse_args()
    where = h.machine()
    results = virtual(arguments.seeds)
    if arguments.real_seeds:
        results |= real(arguments.real_seeds)
    measured = {key: value["median"] for key, value in results.items() if key.endswith("_times_sooner")}
    targets: dict[str, h.Target] = {key: (">=", 3.0, value) for key, value in measured.items()}
    h.report("pruning", results, targets, where)


if __name__ == "__main__":
    main()
