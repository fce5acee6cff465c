"""OptimizationDriver: rank 0 coordinates a search, the other ranks train in blocks."""

import sys
from pathlib import Path
from typing import Any

from nnlo_opt.cli.options import Options
from nnlo_opt.cli.ranks import Means, Place, make_server
from nnlo_opt.cli.session import Session
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.mpi import World
from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.coordinator import Search
from nnlo_opt.errors import EXIT_FAILURE, EXIT_OK, ConfigurationError
from nnlo_opt.log import RankOutput
from nnlo_opt.report.lines import outcome, point_text
from nnlo_opt.report.table import trials_table
from nnlo_opt.search.process import SearchProcess
from nnlo_opt.space.space import Space
from nnlo_opt.training.timeline import Timeline
from nnlo_opt.trials.run_directory import RunDirectory


def run(world: World, options: Options, output: RankOutput, timeline: Timeline) -> int:
    """Run the command on this rank; returns the exit code. Collective: every rank of the world."""
    topology = Topology.plan(world.size, options.block_size, options.plan.n_fold)
    means = Means.of(world, topology, options, output, timeline)
    if world.size == 1:
        network = LoopbackNetwork(2)
        place = Place.of(topology.teams[0], network.end(1), world.alone())
        server = make_server(place, options, means, searches=True)
        return SearchSession(options, topology, network.end(0), pump=server.step, timeline=timeline).run()
    transport = world.transport()
    comm = world.team_communicator([team.world_ranks for team in topology.teams])
    team = topology.team_of_rank(world.rank)
    if team is None:
        return SearchSession(options, topology, transport, pump=lambda: False, timeline=timeline).run()
    return make_server(Place.of(team, transport, comm, options.n_processes), options, means, searches=True).serve()


class SearchSession(Session):
    """One start of a search."""

    program = "OptimizationDriver"
    _search: SearchProcess | None = None

    def load_space(self) -> dict[str, Any] | None:
        # Started early: it imports its libraries while the trainer ranks import theirs.
        self._search = SearchProcess()
        if self.options.search_space is None:
            return None
        return self._search.load_space(self.options.search_space).to_json()

    def check_findings(self, findings: dict[str, Any]) -> None:
        if self.options.plan.direction == "max" and findings["kind"] == "model":
            raise ConfigurationError(
                f"`--direction max` is for objective modules. Received: a model, whose figure of merit is "
                f"{findings['figure']} and minimised; leave it out."
            )

    def start_search(self, findings: dict[str, Any], identity: dict[str, Any]) -> Search:
        assert self._search is not None
        options = self.options
        settings = {}
        if options.hyper_opt == "bayesian":
            settings["n_initial_points"] = identity["n_initial_points"]
        self._search.start(options.hyper_opt, Space.from_json(findings["space"]), options.seed, settings)
        return self._search

    def close(self) -> None:
        if self._search is not None:
            self._search.close()

    def greet(self, directory: RunDirectory, findings: dict[str, Any]) -> None:
        options, topology = self.options, self.topology
        sizes = {sum(len(t.world_ranks) for t in topology.teams_of(b + 1)) for b in range(topology.n_blocks)}
        ranks = " or ".join(str(size) for size in sorted(sizes, reverse=True))
        self.say(
            f"Run `{directory.path}`: {options.plan.num_iterations} trials of {findings['model']} on "
            f"{topology.n_blocks} block{'s' * (topology.n_blocks > 1)} of {ranks} rank{'s' * (ranks != '1')}, "
            f"{options.hyper_opt} search, seed {options.seed}."
        )
        if findings["data"]:
            folds = f", pooled and cut into {options.plan.n_fold} folds" if options.plan.n_fold > 1 else ""
            data = findings["data"]
            self.say(f"Data: {data['n_train']} training and {data['n_validation']} validation samples{folds}.")
        for line in findings["remarks"]:
            self.say(line)
        ledger = directory.ledger
        if ledger.sessions:
            n_open = len(ledger.trials) - ledger.n_ended
            self.say(f"Going on with `{directory.path}`: {ledger.n_ended} trials have ended, {n_open} were under way.")

    def conclude(self, directory: RunDirectory, figure: str, model_path: Path | None) -> int:
        ledger = directory.ledger
        self.say("")
        self.say(trials_table(ledger, figure))
        self.say("")
        self.say(f"Search complete: {ledger.completed_because} ({outcome(ledger)}).")
        self.say(f"Files: `{directory.path}` (results.csv, summary.json, journal.jsonl).")
        best = ledger.best(self.options.plan.direction)
        if best is None:
            reasons = [trial.reason for trial in ledger.trials if trial.reason]
            self.say(f"No trial succeeded. The first reason: {reasons[0] if reasons else 'none'}", sys.stderr)
            return EXIT_FAILURE
        self.say(f"Best: trial {best.number}, {figure} {best.figure_of_merit:.6g}, at {point_text(best.point)}")
        if model_path is not None:
            self.say(f"Its model: `{model_path}`.")
        return EXIT_OK
