"""Memory that this rank may fill with samples."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

#: fraction of the free memory; frameworks, activations and other programs need the rest
_SHARE = 1 / 4
_GROUPS = Path("/sys/fs/cgroup")
#: version of control groups -> files with the limit and the usage, key of the cache in `memory.stat`
_NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def budget_bytes(n_node_ranks: int) -> int:
    """Return the bytes that each rank of a node may use: a quarter of the free memory, divided among the ranks."""
    return int(available_bytes() * _SHARE / max(1, n_node_ranks))


def available_bytes() -> int:
    """Return the free bytes of the machine, or of this process's control group (container, job) if less."""
    return min([_of_machine(), *_of_control_groups()])


def _of_machine() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


def _of_control_groups() -> Iterator[int]:
    """Yield the bytes left in each control group of this process, and in the groups that contain them."""
    for version, folder in control_groups("memory"):
        limit, used, cache = _NAMES[version]
        with suppress(OSError, ValueError):
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            left = int((folder / limit).read_text()) - int((folder / used).read_text())
            yield max(0, left + int(statistics.get(cache, 0)))


def control_groups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield (version, folder) of each control group of this process and of its parent groups, if visible.

    Args:
        controller: controller of version 1; a group of version 2 has all controllers.
    """
    for line in _memberships():
        _, controllers, group = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            inside = Path(group.lstrip("/"))
            for place in (inside, *inside.parents):
                # In a container its own group is the root.
                yield (1, _GROUPS / controller / place) if controllers else (2, _GROUPS / place)


def _memberships() -> list[str]:
    with suppress(OSError):
        return Path("/proc/self/cgroup").read_text().splitlines()
    return []
