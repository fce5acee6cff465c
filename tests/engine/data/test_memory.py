from pathlib import Path

import pytest

from nnlo_opt.engine.data import memory


def test_the_budget_is_a_share_of_what_there_is_divided_among_the_ranks_of_the_node(monkeypatch):
    monkeypatch.setattr(memory, "available_bytes", lambda: 800)
    assert [memory.budget_bytes(n) for n in (1, 2, 4, 0)] == [200, 100, 50, 200]


def test_what_is_available_is_something_and_no_more_than_the_machine_has():
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert 0 < memory.available_bytes() <= total


@pytest.mark.parametrize(
    ("membership", "folder", "names"),
    [
        ("0::/job/step", "job/step", ("memory.max", "memory.current", "inactive_file")),
        ("0::/not/seen/here", ".", ("memory.max", "memory.current", "inactive_file")),
        ("4:memory:/job", "memory/job", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_a_control_group_leaves_its_limit_less_what_is_used_without_files_that_can_be_dropped(
    tmp_path, monkeypatch, membership, folder, names
):
    limit, used, cache = names
    place = tmp_path / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / limit).write_text("1000\n")
    (place / used).write_text("700\n")
    (place / "memory.stat").write_text(f"anon 1\n{cache} 300\n")
    (tmp_path / "memory.max").write_text("max\n") if folder != "." else None
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_memberships", lambda: ["1:cpu:/x", membership])
    monkeypatch.setattr(memory, "_of_machine", lambda: 10**12)
    assert memory.available_bytes() == 600


def test_without_limits_it_is_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_GROUPS", tmp_path)
    monkeypatch.setattr(memory, "_of_machine", lambda: 12345)
    assert memory.available_bytes() == 12345
