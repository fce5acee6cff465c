"""docs/scaling.md: a model of the trainer, and what it says of many workers; and the search on many blocks, simulated.

    python benchmarks/scaling/scaling.py > docs/scaling.md
    python benchmarks/scaling/scaling.py --figures docs

It measures nothing: the page is about what lies in `measured/`, which these commands have printed:

    python benchmarks/training/training.py --parts inner > benchmarks/measured/training.json
    python benchmarks/training/training.py --parts inner --messages > benchmarks/measured/training_messages.json
    python benchmarks/scaling/scaling.py --measure > benchmarks/measured/scaling.json
    python benchmarks/training/training.py --parts inner --models lstm > benchmarks/measured/training_lstm.json
    python benchmarks/training/speedup.py > benchmarks/measured/speedup.json
    python benchmarks/training/momentum.py > benchmarks/measured/momentum.json
    python benchmarks/training/momentum.py --tune > benchmarks/measured/momentum_rates.json
    python benchmarks/training/momentum.py --ranks 8 > benchmarks/measured/momentum_ranks.json
    python benchmarks/search/simulation.py > benchmarks/measured/simulation.json

The search's part is told by `scaling_search.py`, the accuracy of workers with momentum by `scaling_momentum.py`.
`scaling_figures.py` draws the pictures.

The trainer's part is its speed-up at 15, 60 and 256 workers, for each update rule. The model has few parts: seconds a
rank computes for a batch, and what an exchange costs worker, wire and master, or worker and memory where a block is on
one node. The costs of ranks are measured (`--measure`) on
one thread and with cold caches: between two exchanges lies a batch, whose data push out of the caches what an exchange
needs, and that makes it three times as dear as in a loop of its own. Those of the wire are given, for this machine and
for a cluster. Held against what has been measured on this machine, the model says how far it is to be trusted.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import numpy as np
from scaling_momentum import momentum_part
from scaling_search import search_part

from nnlo_opt.core.base.clock import SystemClock
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.block.master.endpoints import WorkerEndpoints
from nnlo_opt.core.block.master.master import Master, MasterSetup
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules import downpour, easgd
from nnlo_opt.core.update_rules.gem import Gem
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.core.update_rules.vectors import blocks

#: what the scripts printed last
MEASURED_HERE = Path(__file__).parents[1] / "measured"
N_WORKERS = (15, 60, 256)
BATCH = 100
#: spread of the time of a batch among workers that wait for each other: standard deviation over mean
JITTER = 0.05
SYNC_EVERY = 10
#: a lock of a block taken and given back; and a call of NumPy on a short vector
LOCK_S, CALL_S = 3e-6, 1e-6
#: what a batch goes through, so that nothing of an exchange is left in the caches of a core
EVICTED_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Wire:
    """Between two ranks."""

    name: str
    latency_s: float
    bytes_per_s: float

    def seconds(self, n_weights: int) -> float:
        """For one message with a vector."""
        return self.latency_s + 4 * n_weights / self.bytes_per_s


HERE = Wire("one machine, shared memory", 5e-6, 6e9)
CLUSTER = Wire("a cluster, 100 Gbit/s", 3e-6, 1.1e10)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of one rank, for vectors of one model."""

    n_weights: int
    #: a message with a vector sent, and taken in
    send: float
    take: float
    #: a vector copied
    copy: float
    #: the optimizer's step
    apply: float
    #: all that a master of Downpour does about an update it has taken in: optimizer and answer included
    serve: float
    #: one elastic exchange
    elastic: float
    #: a worker's part of GEM
    match: float
    #: an update added
    add: float
    #: a batch: gradient alone; known from `training.py`
    compute: float = 0.0

    @property
    def lean(self) -> float:
        """A batch of the lean loop: gradient, optimizer, weights copied."""
        return self.compute + self.apply + self.copy

    def served(self, rule: float) -> float:
        """What a master takes for an update, where what the rule does with it takes `rule`."""
        return self.take + self.serve - self.apply + rule


@dataclass(frozen=True, slots=True)
class Load:
    """What one batch of one worker takes, in seconds."""

    #: of the worker's core
    worker: float
    #: until it can go on: no less than `worker`
    answered: float
    #: of the master's core
    master: float = 0.0

    def seconds(self, n: int, n_cores: float = math.inf) -> float:
        """From batch to batch of each of `n` workers; `n_cores` are shared by all ranks."""
        # One master serves all: no worker is faster than its turn comes. And no core does two things at a time.
        return max(self.answered, n * self.master, n * (self.worker + self.master) / n_cores)


#: (costs, wire, workers) -> load
Rule = Callable[[Costs, Wire, int], Load]


def downpour_load(c: Costs, wire: Wire, n: int) -> Load:
    """Workers overlap: an exchange costs them its messages, and waiting only where the answer is later than a batch."""
    at_worker = c.send + c.take + 2 * c.copy
    at_master = c.served(c.apply)
    busy = c.compute + at_worker
    return Load(busy, max(busy, 2 * wire.seconds(c.n_weights) + at_master + at_worker), at_master)


def synchronous_load(c: Costs, wire: Wire, n: int) -> Load:
    busy = slowest(c.compute, n) + c.send + c.take + 2 * c.copy
    round_s = n * (c.served(c.add) + c.copy) + c.apply
    return Load(busy, busy + round_s + 2 * wire.seconds(c.n_weights), round_s / n)


def in_memory(c: Costs, n: int, lean: float, exchange: float, period: int = 1) -> Load:
    """Workers that move the central weights themselves, in turn only where they meet in a block of the vectors."""
    n_blocks = len(list(blocks(c.n_weights, n // 2)))
    in_turn = (exchange / n_blocks + LOCK_S) / period
    busy = lean + (exchange + n_blocks * LOCK_S + c.copy) / period
    # What is in turn is the only thing that all share: it stands for a master.
    return Load(busy - in_turn, busy, in_turn)


def downpour_in_memory(c: Costs, wire: Wire, n: int) -> Load:
    return in_memory(c, n, c.compute + c.copy, c.apply)


def elastic_in_memory(c: Costs, wire: Wire, n: int) -> Load:
    return in_memory(c, n, c.lean, c.elastic, SYNC_EVERY)


def gem_in_memory(c: Costs, wire: Wire, n: int) -> Load:
    return in_memory(c, n, c.compute + c.match + c.copy, c.add)


def allreduce_in_memory(c: Costs, wire: Wire, n: int) -> Load:
    """Each rank averages an n-th of n gradients, and makes that part of the optimizer's step."""
    busy = slowest(c.compute, n) + c.add + 2 * n * CALL_S + (c.apply / n) + 2 * c.copy
    return Load(busy, busy)


def elastic_load(c: Costs, wire: Wire, n: int) -> Load:
    """An exchange every `SYNC_EVERY` batches."""
    busy = c.lean + (c.send + c.take + c.copy + c.add) / SYNC_EVERY
    return Load(busy, busy, c.served(c.elastic) / SYNC_EVERY)


def gem_load(c: Costs, wire: Wire, n: int) -> Load:
    at_worker = c.send + c.take + 2 * c.copy + c.match
    at_master = c.served(c.add)
    busy = c.compute + at_worker
    return Load(busy, max(busy, 2 * wire.seconds(c.n_weights) + at_master + at_worker), at_master)


def allreduce_load(c: Costs, wire: Wire, n: int) -> Load:
    """A ring: each rank sends and receives 2 (n - 1) / n of the vector, in 2 (n - 1) messages."""
    volume = 2 * (n - 1) / n * 4 * c.n_weights / wire.bytes_per_s
    busy = slowest(c.compute, n) + 2 * c.copy + volume + 2 * (n - 1) * wire.latency_s + c.apply + c.copy
    return Load(busy, busy) if n > 1 else Load(c.lean, c.lean)


def rings_load(c: Costs, wire: Wire, n: int, ranks: int = 4) -> Load:
    """Downpour of workers of `ranks` ranks (`--n-processes`): fewer, larger updates."""
    n_workers = max(1, n // ranks)
    busy = allreduce_load(c, wire, ranks).worker - c.apply + ranks * c.send + c.take
    return Load(busy, busy, c.served(c.apply) * n_workers / n)


RULES: dict[str, Rule] = {
    "downpour": downpour_load,
    "downpour --synchronous": synchronous_load,
    f"easgd --sync-every {SYNC_EVERY}": elastic_load,
    "gem": gem_load,
    "allreduce": allreduce_load,
    "downpour --n-processes 4": rings_load,
}
#: the same where all ranks are on one node
IN_MEMORY: dict[str, Rule] = {
    "downpour": downpour_in_memory,
    f"easgd --sync-every {SYNC_EVERY}": elastic_in_memory,
    "gem": gem_in_memory,
    "allreduce": allreduce_in_memory,
}
#: configuration of training.py -> (rule, workers)
MEASURED = {
    "downpour_1_worker": ("downpour", 1),
    "downpour_2_workers": ("downpour", 2),
    "easgd_2_workers": (f"easgd --sync-every {SYNC_EVERY}", 2),
    "allreduce_2_ranks": ("allreduce", 2),
}


def slowest(seconds: float, n: int) -> float:
    """The mean of the slowest of `n` normal times (Blom's approximation of the extreme order statistic)."""
    return seconds * (1 + JITTER * (NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0))


def cold_s(call: Callable[[Any], object], before: Callable[[], Any] = lambda: None, n: int = 200) -> float:
    """Seconds of `call`, given what `before` returned and caches full of something else; the median of `n` times."""
    other = np.ones(EVICTED_BYTES // 8)
    taken = []
    for _ in range(n):
        given = before()
        other += 1.0
        began_s = time.perf_counter()
        call(given)
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)


class ToItself(Transport):
    """The master's end of a team of two workers that are all one process: what is sent comes back to it."""

    rank, size, n_processes = 0, 3, 3

    def __init__(self) -> None:
        from nnlo_opt.engine.comm.mpi.world import World

        self._itself = World(World().alone()).transport()

    def send(self, dest: int, message: msg.Message, payload: np.ndarray | None = None) -> None:
        self._itself.send(0, message, payload)

    def poll(self) -> Received | None:
        return self._itself.poll()

    def flush(self, timeout_s: float) -> None:
        self._itself.flush(timeout_s)


class Exchange:
    """The steps of an exchange between a worker and a master of Downpour, over real MPI and shared memory."""

    def __init__(self, vector: np.ndarray, directory: Path) -> None:
        self._vector, self._team = vector, ToItself()
        options = TrainingOptions(optimizer="adam", exchange="messages")
        self._master = Master(
            MasterSetup(
                orders=LoopbackNetwork(2).end(1),
                endpoints=WorkerEndpoints(self._team),
                directory=directory,
                options=options,
                clock=SystemClock(),
            )
        )
        self._master.handle_order(msg.RunFold(assignment=1, trial=0, fold=0, attempt=1, point={}))
        ready = msg.WorkerReady(
            assignment=1, n_weights=len(vector), n_state=0, n_train=10**9, n_shard=10**9, has_validation=False
        )
        for worker in (1, 2):
            self._master.handle(Received(worker, ready, vector))
        self._n_updates = 0
        self.drop()

    def push(self) -> None:
        """The worker sends its update."""
        update = msg.PushUpdate(
            assignment=1,
            base_version=self._n_updates,
            n_samples=100,
            sums={"loss": 1.5, "acc": 90.0},
            end_of_pass=False,
        )
        self._team.send(0, update, self._vector)

    def take(self) -> Received:
        """Either of them takes in a message that has come."""
        while (received := self._team.poll()) is None:
            pass
        return received

    def serve(self, update: Received) -> None:
        """The master applies an update and sends its answer."""
        self._master.handle(Received(1 + self._n_updates % 2, update.message, update.payload))
        self._n_updates += 1

    def drop(self) -> None:
        """Take in all that has come."""
        while self._team.poll() is not None:
            pass

    def send_and_take(self) -> Received:
        """An update that the master is to serve."""
        self.drop()
        self.push()
        return self.take()


def costs_of(n_weights: int) -> Costs:
    """Measure what a vector of this model costs."""
    a, b, out = aligned_empty(n_weights), aligned_empty(n_weights), aligned_empty(n_weights)
    a[:] = b[:] = 1e-3
    optimizer, gem = make_optimizer("adam", n_weights), Gem(n_weights)
    apply, copy = cold_s(lambda _: optimizer.apply(a, b)), cold_s(lambda _: np.copyto(a, b))
    with tempfile.TemporaryDirectory() as directory:
        exchange = Exchange(b, Path(directory))
        send = cold_s(lambda _: exchange.push(), exchange.drop)
        take = cold_s(lambda _: exchange.take(), lambda: (exchange.drop(), exchange.push()))
        serve = cold_s(exchange.serve, exchange.send_and_take)
    return Costs(
        n_weights=n_weights,
        send=send,
        take=take,
        copy=copy,
        apply=apply,
        serve=serve,
        elastic=cold_s(lambda _: easgd.exchange(a, b, 0.1, out)),
        match=cold_s(lambda _: gem.update(a, out)) + cold_s(lambda _: gem.adopt(a)),
        add=cold_s(lambda _: downpour.combine([(1, a)], out)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="print what a rank costs here, instead of the page")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="draw the pictures instead")
    arguments = parser.parse_args()
    training = measured("training")
    # Of the machine of that day.
    training |= {name: value for name, value in measured("training_lstm").items() if name.startswith("lstm")}
    models = [name for name in ("mlp", "cnn", "lstm") if f"{name}_lean_samples_per_s" in training]
    if arguments.measure:
        where = h.machine()
        h.report("scaling", {name: asdict(costs_of(training[f"{name}_n_weights"])) for name in models}, {}, where)
        return
    found = measured("scaling")
    costs = {name: Costs(**found[name]) for name in models}
    for name, c in costs.items():
        # The gradient is what is left of a batch of the lean loop.
        lean_s = BATCH / training[f"{name}_lean_samples_per_s"]["median"]
        costs[name] = replace(c, compute=lean_s - c.apply - c.copy)
    # Not everything is measured everywhere.
    waits = measured("speedup") if (MEASURED_HERE / "speedup.json").exists() else {}
    momentum = measured("momentum")
    if arguments.figures:
        draw(arguments.figures, training, costs, waits, momentum)
        return
    print("# How it scales\n")
    print("`python benchmarks/scaling/scaling.py` prints this page from the measurements in `benchmarks/measured/`.\n")
    print("\n".join(page(training, measured("training_messages"), costs, waits)) + "\n")
    print(momentum_part(momentum, measured("momentum_rates"), measured("momentum_ranks")))
    print(search_part(measured("simulation")), end="")


def measured(name: str) -> dict[str, Any]:
    """What a script printed last."""
    line = json.loads((MEASURED_HERE / f"{name}.json").read_text())
    return line.get("results", line)


def page(
    measured: dict[str, Any], by_messages: dict[str, Any], costs: dict[str, Costs], waits: dict[str, Any]
) -> list[str]:
    """Return the lines of the page about these measurements and costs, all of one machine."""
    where = measured["machine"]
    n_cores = where["n_cores"]
    lines = [
        "## The trainer: many workers",
        "",
        "A performance model built from the costs of one rank (`benchmarks/scaling/scaling.py --measure`) is compared",
        "with the measurements of `benchmarks/training/training.py`; the docstring of the script describes it. The",
        "speed-up is relative to the lean loop: one process, the same step and optimizer, no communication. The",
        f"machine has {n_cores} cores ({where['cpu']}) and was shared with other work (load {where['load_1min']:.0f});",
        "the LSTM was measured on 2 otherwise idle cores of an Intel Xeon.",
        "",
        "![Speed-up against workers, measured and by the model](scaling.svg)",
        "",
        "Points are measured, lines are the model (`python benchmarks/scaling/scaling.py --figures docs`). The points",
        "of the mpi_learn talk (2017: linear to about 15 GPUs, 30 times as fast on 60) are for a network of unknown",
        "cost, trained by Downpour through one master.",
        "",
        "### What one rank costs, in milliseconds",
        "",
        "| model | weights | gradient of 100 samples | sending a message | receiving it | serving an update (master) |"
        " of which Adam | elastic exchange | GEM |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, c in costs.items():
        values = (c.compute, c.send, c.take, c.serve, c.apply, c.elastic, c.match)
        lines.append(f"| {name} | {c.n_weights:,} | " + " | ".join(f"{1e3 * value:.3f}" for value in values) + " |")
    lines += ["", "### Predicted and measured on this machine", ""]
    lines += [
        "| model | configuration | predicted speed-up | measured | predicted / measured |",
        "|---|---|---|---|---|",
    ]
    for how, found, rules in (("in memory", measured, IN_MEMORY), ("by messages", by_messages, RULES)):
        for name, c in costs.items():
            lines += _compared(name, c, how, found, rules, n_cores)
    lines += [
        "",
        f"In these measurements workers and master share the {n_cores} cores of this machine. The predictions below",
        "assume one core per rank.",
        "",
        *(_waiting(costs, waits) if waits else ()),
        "",
        "### Predicted on one node",
        "",
        "The node has one core per worker, and the same memory bandwidth per core as this machine.",
        "",
        *_predicted(costs, IN_MEMORY, HERE),
        "",
        f"### Predicted on {CLUSTER.name}",
        "",
        f"The latency is {1e6 * CLUSTER.latency_s:g} us, the bandwidth {CLUSTER.bytes_per_s / 1e9:g} GB/s per rank.",
        f"Where ranks wait for each other, batch times vary by {JITTER:.0%}.",
        "",
        *_predicted(costs, RULES, CLUSTER),
    ]
    lines += [
        "",
        "A single master limits Downpour and GEM, because packing, unpacking and applying each update takes it the",
        "same time for any number of workers. Longer sync periods, elastic averaging, larger batches and",
        "`--n-processes` reduce the number of updates; allreduce has no master. On one node workers update shared",
        "memory themselves; the limit there is a small model with a single block of weights, which one worker at a",
        "time can change.",
    ]
    return lines


def _compared(name: str, c: Costs, how: str, measured: dict[str, Any], rules: dict[str, Rule], cores: int) -> list[str]:
    """A row for each configuration of a model that was measured, with so many cores."""
    lines: list[str] = []
    if f"{name}_lean_samples_per_s" not in measured:
        return []
    lean = measured[f"{name}_lean_samples_per_s"]["median"]
    # Ranks side by side share memory and caches: the control knows by how much.
    control = measured.get(f"{name}_control_samples_per_s", {}).get("median", 2 * lean) / lean / 2
    for key, (rule, n) in MEASURED.items():
        found = measured.get(f"{name}_{key}_samples_per_s")
        if found is None:
            continue
        shared = replace(c, compute=c.compute / control) if n > 1 else c
        predicted, seen = n * c.lean / rules[rule](shared, HERE, n).seconds(n, cores), found["median"] / lean
        what = f"{key.replace('_', ' ')}, {how}"
        lines.append(f"| {name} | {what} | {predicted:.2f} | {seen:.2f} | {predicted / seen:.2f} |")
    return lines


def waiting(c: Costs, device: dict[str, Any], rule: Rule, n: int, cores: float) -> float:
    """The speed-up of `n` workers whose batch takes `cpu_ms` of a core and waits for a device up to `batch_ms`."""
    cpu_s, batch_s = device["cpu_ms"] / 1e3, device["batch_ms"] / 1e3
    load = rule(replace(c, compute=cpu_s - c.apply - c.copy), HERE, n)
    return n * batch_s / replace(load, answered=load.answered + batch_s - cpu_s).seconds(n, cores)


#: device of speedup.py -> model whose vectors are as long
AS_LONG = {"lstm": "lstm", "large": "cnn"}


def _waiting(costs: dict[str, Costs], found: dict[str, Any]) -> list[str]:
    """Return the section on `speedup.py`."""
    n_cores = found["machine"]["n_cores"]
    lines = [
        "### 1 to 8 workers, each with a simulated device",
        "",
        f"{n_cores} cores cannot compute for 8 workers. In `benchmarks/training/speedup.py` a batch is a small",
        "gradient and a wait without CPU, as if each worker had a GPU. Ranks, messages, shared memory and optimizer",
        "are real; only the batch time is simulated. A control, the trainer in one process without communication,",
        "runs beside each measurement; the model subtracts its share of a core. The machine was otherwise idle. When",
        "both cores are nearly busy, ranks also wait for a core and for memory bandwidth, which the model ignores:",
        "with many weights (`large`) it is too optimistic from 6 workers on.",
        "",
        "| batch | weights | exchange | workers | predicted speed-up | measured | predicted / measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, device in found.items():
        if name not in AS_LONG:
            continue
        what = f"{name}, {device['batch_ms']:.1f} ms, {device['cpu_ms']:.1f} of them CPU | {device['n_weights']:,}"
        for point in device["points"]:
            n, how = point["workers"], point["exchange"]
            rule = (IN_MEMORY if how == "in memory" else RULES)["downpour"]
            cores = n_cores - device["cpu_ms"] / device["batch_ms"]  # the control has the rest
            predicted, seen = waiting(costs[AS_LONG[name]], device, rule, n, cores), point["speed_up"]
            lines.append(f"| {what} | {how} | {n} | {predicted:.2f} | {seen:.2f} | {predicted / seen:.2f} |")
    return lines


def draw(folder: Path, training: dict[str, Any], costs: dict[str, Costs], found: dict[str, Any], momentum: Any) -> None:
    """Write the pictures of the page to `folder`."""
    import scaling_figures

    def curve(rule: Rule, wire: Wire, name: str) -> Callable[[int], float]:
        return lambda n: n * costs[name].lean / rule(costs[name], wire, n).seconds(n)

    lean = training["lstm_lean_samples_per_s"]["median"]
    computing = [
        (n, training[f"lstm_{key}_samples_per_s"]["median"] / lean)
        for key, (rule, n) in MEASURED.items()
        if rule == "downpour"
    ]
    points = {"LSTM that computes, 2 cores": computing}
    for point in found["lstm"]["points"] if found else ():
        points.setdefault(f"LSTM that waits, {point['exchange']}", []).append((point["workers"], point["speed_up"]))
    curves = {
        "LSTM, one node": curve(downpour_in_memory, HERE, "lstm"),
        "LSTM, cluster, one master": curve(downpour_load, CLUSTER, "lstm"),
        "CNN, cluster, one master": curve(downpour_load, CLUSTER, "cnn"),
        "MLP, cluster, one master": curve(downpour_load, CLUSTER, "mlp"),
    }
    scaling_figures.speed_ups(curves, points, folder / "scaling.svg")
    scaling_figures.momentum(momentum, folder / "momentum.svg")


def _predicted(costs: dict[str, Costs], rules: dict[str, Rule], wire: Wire) -> list[str]:
    """A table of speed-ups."""
    lines = [
        "| model | update rule | " + " | ".join(f"{n} workers" for n in N_WORKERS) + " |",
        "|---|---|" + "---|" * len(N_WORKERS),
    ]
    for name, c in costs.items():
        for rule, load in rules.items():
            speed_ups = " | ".join(f"{n * c.lean / load(c, wire, n).seconds(n):.1f}" for n in N_WORKERS)
            lines.append(f"| {name} | {rule} | {speed_ups} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
