"""The two classes of NNLO's OptimizationDriver.py, implemented by `nnlo_opt.optimize`.

Rank 0 knows the settings of the search, the ranks of the blocks those of the training and the data. They exchange these
when they run.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import nnlo_opt
from nnlo_opt.app.api.optimize import space_of
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.engine.comm.rank_group import RankGroup
from nnlo_opt.engine.data.lists import located

#: argument of `ProcessBlock` -> option of `optimize`; other arguments are ignored
_OPTIONS = {
    **{"folds": "n_fold", "num_masters": "n_masters", "num_process": "n_processes"},
    **{name: name for name in ("early_stopping", "target_metric", "monitor", "checkpoint_interval")},
}


class Coordinator:
    """Coordinator of a search, on rank 0; `ga` selects genetic search with generations of `populationSize` trials."""

    def __init__(
        self, comm: Any, num_blocks: int, opt_params: Any, ga: bool, populationSize: int, **given: Any
    ) -> None:
        checkpointing = given.get("checkpointing")
        self.comm, self.label = comm, checkpointing or given.get("label")
        self._n_a_step = populationSize if ga else 1
        self._options: dict[str, Any] = {"space": opt_params, "checkpoint": checkpointing}
        if ga:
            self._options |= {"hyper_opt": "genetic", "ga_populations": populationSize}
        #: figure of merit at which the search stops; None to not stop
        self.target_fom: float | None = None
        self._result: Any = None

    def load(self, fn: str | None = None) -> None:
        """Resume the run named by `checkpointing`."""
        self._options["opt_restore"] = True

    def run(self, num_iterations: int = 1) -> None:
        """Search. Collective: every other rank must run its block."""
        self._options |= {"num_iterations": num_iterations * self._n_a_step, "target_objective": self.target_fom}
        self._result = found = _search(self.comm, self._options)
        print(f"Best parameters found: {found.best_parameters} with value {found.figure_of_merit}", flush=True)

    def record_details(self, json_name: str | None = None) -> None:
        """Write the trials to a JSON file in NNLO's format."""
        found = [trial for trial in self._result.ledger.trials if trial.figure_of_merit is not None]
        points, figures = [[*trial.point.values()] for trial in found], [trial.figure_of_merit for trial in found]
        best = {"fX": [*(self._result.best_parameters or {}).values()], "fY": self._result.figure_of_merit}
        history = json.dumps({"tell": [{"X": points, "Y": figures, **best}]}, indent=2)
        atomic_write(Path(json_name or f"{self.label}-coordinator.json"), history)


class ProcessBlock:
    """Rank of a block, which trains the models of a provider's `builder`.

    `rest`: the provider, the number of epochs, the training files and the validation files.
    """

    def __init__(self, comm_world: Any, comm_block: Any, algo: Any, data: Any, device: str, *rest: Any, **given: Any):
        self._provider, epochs, train_list, val_list = rest
        if not isinstance(data, nnlo_opt.H5Data) or not data.is_plain:
            raise ConfigurationError(
                f"A search of a script must read HDF5 files. Received: {type(data).__name__}. Give its blocks `H5Data`."
            )
        self.comm_world, n_ranks = comm_world, comm_block.Get_size()
        self._options = algo.search_options(max(1, n_ranks - 1)) | {
            "block_size": n_ranks,
            "batch": data.batch_size,
            "epochs": epochs,
            "preload_data": data.preloading,
            "cache_data": data.caching_directory or None,
            **{_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS},
        }
        self._functions: dict[str, Any] = {
            "get_model": self._build,
            "get_train": lambda: [*map(located, train_list)],
            "get_val": lambda: [*map(located, val_list)],
            "get_features": lambda: data.features_name,
            "get_labels": lambda: data.labels_name,
        }
        if callable(algo.loss):
            self._functions["get_loss"] = lambda: algo.loss

    def run(self) -> None:
        """Train until the search has ended. Collective: every rank must call it."""
        function = getattr(self._provider, "model_fn", self._provider.builder)
        source = getattr(function, "func", function).__code__.co_filename
        _search(self.comm_world, self._options | {"source": source}, **self._functions)

    def _build(self, **point: Any) -> Any:
        builder = self._provider.builder(*(point[parameter.name] for parameter in self._provider.parameters))
        if builder is None:
            raise TrialError(f"A builder must return a model for every point. Received: none for {point}.")
        return builder.build_model()


def _search(comm: Any, own: dict[str, Any], **functions: Any) -> Any:
    ranks = RankGroup(comm)
    plain = ranks.attempt(lambda: {**own, "space": space_of(own["space"]).to_json()} if "space" in own else own)
    options: Any = {name: value for rank in (0, 1) for name, value in ranks.share_json(plain, rank).items()}
    ranks.close()
    module, space = ModuleType("script"), nnlo_opt.Space.from_json(options.pop("space"))
    vars(module).update({"__file__": options.pop("source"), "get_model": _search, **functions})
    return nnlo_opt.optimize(module, space, comm=comm, catch=True, **options)
