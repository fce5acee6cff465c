"""Questions of a start to a trainer rank, about model and data, before there is a run."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nnlo_opt.app.reporting.words import counted
from nnlo_opt.app.run.options.checks import check_momentum, check_shares
from nnlo_opt.app.run.options.space_checks import idle_options
from nnlo_opt.app.run.start.driver import Driver
from nnlo_opt.app.run.start.identity import calls_back, what_is_followed
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.comm.run_messages import Check, Inspect, Inspected
from nnlo_opt.engine.models.builders import model_file
from nnlo_opt.engine.models.framework import framework_name


class Inquiry:
    """Asks a trainer rank about model and data, unless the host of `driver` knows the answer."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._options, self._topology, self._ranks = driver.options, driver.topology, driver.ranks

    def findings(self) -> Findings:
        """Return the findings about model and data; ConfigurationError if the request is not possible with them."""
        findings = self._driver.host.findings or self._inspect()
        return replace(findings, remarks=(*findings.remarks, *self._check(findings)))

    def _inspect(self) -> Findings:
        driver, topology = self._driver, self._topology
        driver.say(f"{driver.program} on {counted(topology.world_size, 'rank')}: reading model and data.")
        for remark in self._options.remarks:
            driver.say(remark)
        reporter = topology.teams[0].first_trainer_rank
        trainers = [rank for team in topology.teams for rank in team.trainer_ranks]
        asked = list[int]()
        with driver.console.waiting(lambda: self._awaited(asked)):
            loaded = driver.load_space()
            space = None if loaded is None else loaded.to_json()
            # Before any rank imports a framework: an error comes at once, and no rank is still importing.
            run = self._options.run
            begun: dict[str, Any] = {"space": space, "calls_back": calls_back(run), **what_is_followed(run)}
            begun["n_workers"] = max(team.n_workers for team in topology.teams)
            if early := self._ask(reporter, Check(**begun)):
                self._check(Findings.from_json(early))
            asked += trainers
            for rank in trainers:
                if rank != reporter:
                    self._ranks.transport.send(rank, Inspect(report=False, **begun))
            findings = self._ask(reporter, Inspect(report=True, **begun))
        return Findings.from_json(findings)

    def _ask(self, reporter: int, question: Check | Inspect) -> dict[str, Json]:
        inspected = self._ranks.ask(reporter, question, Inspected)
        if inspected.error:
            raise ConfigurationError(inspected.error)
        return inspected.findings

    def _check(self, findings: Findings) -> tuple[str, ...]:
        """Raise ConfigurationError if the request is not possible with this model and these data; return remarks."""
        self._driver.check(findings)
        options, topology = self._driver.options, self._topology
        kind = {"own": findings.trains_itself, "brings_optimizer": bool(findings.steps)}
        idle = () if findings.is_objective else idle_options(options.training, findings.space, **kind)
        shares = check_shares(options, topology, findings)
        return (*shares, *check_momentum(options, topology, findings), *idle)

    def _awaited(self, asked: Sequence[int]) -> str:
        """Describe what the start waits for; `asked`: ranks that were asked to import a framework."""
        options, n_left = self._options, len(set(asked) - self._ranks.prepared)
        if not n_left:
            return f"Waiting: {'building the model' if asked else 'reading model and data'}"
        name = framework_name(model_file(options.model), options.backend)
        if name == "keras":
            name = options.keras_backend or os.environ.get("KERAS_BACKEND") or "tensorflow"
        who = f" for {n_left} of {len(asked)} ranks that train" if len(asked) > 1 else ""
        return f"Waiting{who}: importing {name}"
