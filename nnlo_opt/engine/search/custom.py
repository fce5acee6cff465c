"""User-defined search algorithms, pruners and update rules: objects and classes, `FILE.py:CLASS`, or installed."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, ProtocolError
from nnlo_opt.core.base.user_code import reason_of, takes_arguments
from nnlo_opt.core.search.base import History, SearchAlgorithm
from nnlo_opt.core.search.curves import Reports
from nnlo_opt.core.search.pruning import Decision, Pruner, Verdict
from nnlo_opt.core.space.constraint import fingerprint
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.space.values import plain
from nnlo_opt.core.update_rules.layers import layers_of
from nnlo_opt.core.update_rules.registry import RULES
from nnlo_opt.core.update_rules.rule import Answer, MasterHalf, UpdateRule, WorkerHalf
from nnlo_opt.engine.loading import installed
from nnlo_opt.engine.loading.modules import __name__ as user_files
from nnlo_opt.engine.loading.modules import load_module
from nnlo_opt.engine.runtime.process import code_of_user

#: characters of a fingerprint that a name shows
_SHOWN = 12
#: two weights, with which an update rule is tried
_LAYERS = layers_of([("weights", (2,))])


def is_custom(part: object) -> bool:
    """Return True for an object, FILE.py:CLASS or NAME@PACKAGE; False for a built-in name."""
    return not isinstance(part, str) or ".py:" in part or installed.is_installed(part)


def custom_name(part: object) -> str:
    """Return the name of an algorithm or pruner for the journal; a custom one has a fingerprint of its code.

    The fingerprint is of the file, the installed package, or an object's methods and plain values.
    """
    if not isinstance(part, str):
        kind, given = (part, {}) if isinstance(part, type) else (type(part), getattr(part, "__dict__", {}))
        values = sorted(item for item in given.items() if isinstance(item[1], int | float | str | None))
        name, code = kind.__qualname__, "".join([*_methods(kind), repr(values)]).encode()
    elif installed.is_installed(part):
        return installed.described(part)
    elif os.path.isfile(source := part.rpartition(":")[0]):
        name, code = os.path.basename(part), Path(source).read_bytes()
    else:
        return part
    return f"{name} ({hashlib.sha256(code).hexdigest()[:_SHOWN]})"


def check_search(part: object) -> None:
    """Raise ConfigurationError if `part` is not a search algorithm; a class is checked when constructed."""
    if not isinstance(part, type) and not takes_arguments(getattr(part, "suggest", None)):
        raise ConfigurationError(
            "A custom search algorithm must be an object with a method `suggest(history)`. Received: "
            f"{part!r}. Give one, or a name."
        )


def check_pruner(part: object) -> None:
    """Raise ConfigurationError if `part` is not a pruner, or pauses trials; a class is checked when constructed."""
    if isinstance(part, type):
        return
    if not isinstance(part, Pruner) or part.pauses or not takes_arguments(part.decide, 4):
        raise ConfigurationError(
            "A custom pruner must be a `nnlo_opt.extend.Pruner` that does not pause trials, with a "
            f"method `decide(trial, fold, epoch, reports)`. Received: {part!r}. Inherit from this class, and return "
            "`Verdict.GO_ON` or `Verdict.PRUNE` in a `Decision`."
        )


def custom_search(part: str | SearchAlgorithm | type[SearchAlgorithm], space: Space, seed: int) -> SearchAlgorithm:
    """Return an algorithm with checked suggestions from an object, or a class constructed by CLASS(space, seed).

    Raises:
        ConfigurationError: the class does not exist, cannot be constructed, or lacks `suggest`.
    """
    made = _made(part, "A custom search algorithm", installed.SEARCH_ALGORITHMS, space=space, seed=seed)
    check_search(made)
    return CheckedSearch(made, space)


def custom_pruner(part: str | Pruner | type[Pruner]) -> Pruner:
    """Return a pruner with checked decisions from an object, or a class constructed by CLASS().

    Raises:
        ConfigurationError: the class does not exist, cannot be constructed, or is not a pruner.
    """
    made = _made(part, "A custom pruner", installed.PRUNERS)
    check_pruner(made)
    return CheckedPruner(made)


def rules_with(mode: str) -> Mapping[str, UpdateRule]:
    """Return name -> update rule, including that of `mode` if it is custom."""
    return {**RULES, mode: custom_rule(mode)} if is_custom(mode) else RULES


def custom_rule(part: str) -> UpdateRule:
    """Return the update rule of FILE.py:CLASS or NAME@PACKAGE, constructed by CLASS().

    Raises:
        ConfigurationError: the class does not exist, cannot be constructed, or is not an update rule.
    """
    made = _made(part, "A custom update rule", installed.UPDATE_RULES)
    if not isinstance(made, UpdateRule) or made.options or not isinstance(getattr(made, "name", None), str):
        raise ConfigurationError(
            "A custom update rule must be a `nnlo_opt.extend.UpdateRule` with a `name` and "
            f"without `options`. Received: {made!r} of {part}. Inherit from this class, and make numbers of the rule "
            "constants."
        )
    return made


def check_halves(options: Any) -> None:
    """Raise ConfigurationError if a custom rule of `TrainingOptions` fails on one update of two weights."""
    rule, weights = options.rule, np.zeros(2, np.float32)
    received: Any
    demand = "return a `WorkerHalf` by `worker_half`, and a `MasterHalf` by `master_half`"
    try:
        received = worker, master = rule.worker_half(options, 2), rule.master_half(options, 2, 1)
        if isinstance(worker, WorkerHalf) and isinstance(master, MasterHalf):
            if rule.averages_every_batch:  # workers have no individual updates
                return
            demand = "return an update of all weights by `finish` of its worker, a float32 vector that `apply` takes"
            worker.take_layers(_LAYERS)
            worker.adopt(Answer.WEIGHTS, weights)
            worker.gradient[:] = 1.0
            worker.step(1)
            received = worker.finish()
            if isinstance(received, np.ndarray) and (received.shape, received.dtype) == (weights.shape, weights.dtype):
                demand, received = _fault_at_master(options, received)
                if not demand:
                    return
    except ConfigurationError:  # an option's value, already described for the user
        raise
    except (Exception, SystemExit) as error:
        received = reason_of(error)
    if isinstance(received, np.ndarray):
        received = f"{received.dtype} of shape {received.shape} for {weights.shape}"
    raise ConfigurationError(f"A custom update rule must {demand}. Received: {received} of {options.mode}. Correct it.")


def _fault_at_master(options: Any, update: np.ndarray) -> tuple[str, str]:
    """Return what is wrong with the master's half on an update of two weights, and what was received; "" if nothing.

    Raises:
        Exception: of the user.
    """
    master, other = (options.rule.master_half(options, 2, 1) for _ in range(2))
    central, shared = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for half in (master, other):
        half.take_layers(_LAYERS)
    before = [vector.copy() for vector in master.vectors]
    if options.synchronous:
        try:
            master.apply_round(central, [(1, update.copy())])
        except ProtocolError as error:
            return "have `apply_round` at its master, or `may_be_synchronous = False`", str(error)
    else:
        master.apply(central, update.copy(), 1.0)
    same = not central.any() and all(map(np.array_equal, before, master.vectors))
    if same and update.any():
        name = "apply_round" if options.synchronous else "apply"
        what = f"change `central` or a vector of its `memory` in place by `{name}`, as `central -= step`"
        return what, "weights and memory as before an update"
    if options.synchronous:
        return "", ""
    if options.shares_weights:
        answer = shared if master.answers == Answer.WEIGHTS else np.zeros(2, np.float32)
        other.at_step(1)
        other.exchange_block(shared, update.copy(), answer, 1.0, slice(0, 2))
        if not np.allclose(central, shared, equal_nan=True):
            what = "move the weights by `exchange_block`, which it may inherit from `MasterHalf`, as by `apply`"
            return what, f"{shared.tolist()} instead of {central.tolist()}"
    return "", ""


class CheckedSearch:
    """Wraps a custom algorithm: turns its errors and invalid points into ConfigurationError."""

    def __init__(self, algorithm: SearchAlgorithm, space: Space) -> None:
        self._algorithm = algorithm
        self._space = space

    def suggest(self, history: History) -> Point | None:
        try:
            with code_of_user():
                point: object = self._algorithm.suggest(history)
        except (Exception, SystemExit) as error:
            point = reason_of(error)
        if point is None:
            return None
        space, given = self._space, point if isinstance(point, dict) else {}
        if given and space.contains(given):
            return {name: plain(value) for name, value in given.items()}
        wrong = [f"{name!r}" for name in given if name not in space.names or not space[name].contains(given[name])]
        raise ConfigurationError(
            f"`{type(self._algorithm).__qualname__}.suggest` must return a point of the search space as a dict, or "
            f"None at its end. Received: {point}{', wrong in ' * bool(wrong)}{', '.join(wrong)}. `history.space` has "
            f"the parameters {', '.join(space.names)}."
        )


class CheckedPruner(Pruner):
    """Wraps a custom pruner: turns its errors and invalid return values into ConfigurationError."""

    def __init__(self, pruner: Pruner) -> None:
        self._pruner = pruner

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        try:
            with code_of_user():
                answer: object = self._pruner.decide(trial, fold, epoch, reports)
        except (Exception, SystemExit) as error:
            answer = reason_of(error)
        match answer:
            case Decision(Verdict.GO_ON | Verdict.PRUNE, 0, str()):
                return answer
        raise ConfigurationError(
            f"`{type(self._pruner).__qualname__}.decide` must return a `Decision` with `Verdict.GO_ON` or "
            '`Verdict.PRUNE`, for example `Decision(Verdict.PRUNE, reason="no better")`. Received: '
            f"{answer} for trial {trial} after epoch {epoch}. Correct it, and start a new run."
        )


def _made(part: Any, what: str, group: str, **arguments: object) -> Any:
    """Return an object unchanged; construct a class, or the class named by a str, with `arguments` in order."""
    maker: Any
    if installed.is_installed(part):
        form, received, maker = "a class of its package", part, installed.load(group, part)
    elif isinstance(part, str):
        source, _, name = part.rpartition(":")
        form, received = "FILE.py:CLASS", part
        maker = getattr(load_module(source, f"{what} must be FILE.py:CLASS"), name, None)
    elif isinstance(part, type):
        form, received, maker = "a class or an object", f"the class {part.__qualname__}", part
    else:
        return part
    rule = f"{what} must be {form}, created by `CLASS({', '.join(arguments)})`"
    if not takes_arguments(maker, len(arguments)):
        wrong = "which cannot be called like that" if callable(maker) else "and there is no such class"
        raise ConfigurationError(f"{rule}. Received: {received}, {wrong}. Correct the class, or the name.")
    try:
        with code_of_user():
            return maker(*arguments.values())
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{rule}. Received: {received}, with {reason_of(error)}. Correct the class."
        ) from error


def _methods(kind: type) -> Iterator[str]:
    """Yield the fingerprints of the methods of a class and its user-defined base classes."""
    for base in kind.__mro__:
        module = base.__module__.removeprefix(f"{user_files}.")
        if module.partition(".")[0] not in ("builtins", "abc", "typing", "nnlo_opt"):
            yield from (fingerprint(value) for value in vars(base).values() if isinstance(value, FunctionType))
