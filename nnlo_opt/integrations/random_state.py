"""Saves and restores random states, so that a resumed training draws the same numbers as an uninterrupted one.

For custom training loops in torch or NumPy; our callbacks do it automatically.
"""

import logging
import random
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.engine.models.plain_data import packed, unpacked

logger = logging.getLogger(__name__)

#: file with one rank's random state in a save
_FILE = "random.bin"
#: attributes of data loaders and samplers with generators or samplers
_HOLDERS = ("generator", "sampler", "batch_sampler", "rng")


def save_random_state(folder: Path, *sources: Any) -> None:
    """Write the random state of Python, NumPy, torch (GPUs included) and `sources` to a folder; call it when saving.

    >>> def objective(parameters, report, checkpoint):
    ...     model, loader = make(parameters), DataLoader(data, shuffle=True)
    ...     if checkpoint.folder is not None:
    ...         model.load_state_dict(torch.load(checkpoint.folder / "model.pt"))
    ...     load_random_state(checkpoint.folder, loader)
    ...     for epoch in range(checkpoint.epoch + 1, 10):
    ...         loss = train(model, loader)
    ...
    ...         def write(folder):
    ...             torch.save(model.state_dict(), folder / "model.pt")
    ...             save_random_state(folder, loader)
    ...
    ...         checkpoint.save(epoch, write)

    Args:
        folder: argument of the function given to `checkpoint.save`.
        sources: generators of Python, NumPy or torch, data loaders and samplers with generators, and lists or dicts of
            these; in the same order as for `load_random_state`.

    Raises:
        ConfigurationError: a sampler's `state_dict` is not plain data.
    """
    state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        state["cuda"] = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    state["sources"] = [_state_of(source) for source in _stateful(sources)]
    (folder / _FILE).write_bytes(packed(state).tobytes())


def load_random_state(folder: Path | None, *sources: Any) -> None:
    """Restore what `save_random_state` wrote; call it last before the first batch.

    Args:
        folder: `checkpoint.folder` of the same rank; None (a new trial) does nothing. A save of an earlier version
            without random state does nothing either, with a warning in the log.
        sources: as for `save_random_state`.

    Raises:
        ValueError: the sources have different generators from the saved ones.
    """
    if folder is None:
        return
    path = folder / _FILE
    if not path.exists():
        logger.warning(
            "`%s` has no random state: shuffling and dropout differ from those of an unbroken training", folder
        )
        return
    state, stateful = unpacked(np.frombuffer(path.read_bytes(), np.uint8)), list(_stateful(sources))
    if len(state["sources"]) != len(stateful):
        raise ValueError(
            f"A resumed training must have as many data-loader generators as the saved one. Received: {len(stateful)} "
            f"instead of {len(state['sources'])}. Give the same ones in the same order."
        )
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "torch" in state:
        torch = import_module("torch")
        torch.set_rng_state(state["torch"])
        for device, one in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(one, device)
    for source, one in zip(stateful, state["sources"], strict=True):
        _set_state(source, one)


def _stateful(holder: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the generators and stateful samplers of one or several data loaders, each once."""
    seen = set() if seen is None else seen
    if holder is None or id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, Mapping | list | tuple):
        for one in holder.values() if isinstance(holder, Mapping) else holder:
            yield from _stateful(one, seen)
    elif isinstance(holder, random.Random | np.random.Generator | np.random.RandomState) or _is_torch(holder):
        yield holder
    elif hasattr(holder, "sampler") or not hasattr(holder, "set_epoch"):  # else seed and epoch give its order
        # A stateful loader is left to the framework, which also restores its position.
        if hasattr(holder, "load_state_dict") and not hasattr(holder, "sampler"):
            yield holder
        for name in _HOLDERS:
            yield from _stateful(getattr(holder, name, None), seen)


def _is_torch(source: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Generator)


def _state_of(source: Any) -> Any:
    if isinstance(source, random.Random):
        return source.getstate()
    if isinstance(source, np.random.Generator):
        return source.bit_generator.state
    if hasattr(source, "state_dict"):
        return source.state_dict()
    return source.get_state()


def _set_state(source: Any, state: Any) -> None:
    if isinstance(source, random.Random):
        source.setstate(state)
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = state
    elif hasattr(source, "load_state_dict"):
        source.load_state_dict(state)
    else:
        source.set_state(state)
