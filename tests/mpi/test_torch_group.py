"""Trainings by torch, Lightning and Accelerate as trials on blocks of ranks."""

import json
import re
from pathlib import Path

import pytest

from tests.helpers import launcher, objectives
from tests.helpers.objective_runs import rows, search, summary
from tests.helpers.sources import ROOT

pytestmark = [pytest.mark.mpi, pytest.mark.needs("torch"), pytest.mark.proof]
REPOSITORY = ROOT.parent
IN_BLOCKS_OF_TWO = ["--block-size", "2", "--hyper-opt", "random", "--num-iterations"]


def shown(words: str) -> str:
    """The module of the guide that has these words."""
    guide = (REPOSITORY / "docs/guide/torch.md").read_text()
    (text,) = [text for text in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if words in text]
    return text


@pytest.mark.parametrize(
    "words",
    [
        "",
        pytest.param("import lightning", marks=pytest.mark.needs("lightning")),
        pytest.param("import Accelerator", marks=pytest.mark.needs("accelerate")),
    ],
)
def test_two_blocks_of_two_ranks_train_at_once_as_the_guide_shows(tmp_path, words):
    text = shown(words) if words else (REPOSITORY / "examples/example_torch_ddp.py").read_text()
    search(tmp_path, text, 5, *IN_BLOCKS_OF_TWO, "6")
    assert [row["state"] for row in rows(tmp_path)] == ["complete"] * 6
    assert {row["block"] for row in rows(tmp_path)} == {"1", "2"}


MANY = f"""{objectives.HEAD.replace("import time", "import time, json, psutil, torch, nnlo_opt")}
    process = psutil.Process()
    with open(f"rank-{{comm.rank}}", "a") as file:
        memory = process.memory_info().rss
        print(json.dumps([process.num_fds(), memory, "OMPI_COMM_WORLD_SIZE" in os.environ]), file=file)
    with nnlo_opt.torch_process_group(comm):
        theirs = [name for name in os.environ if name.startswith(("OMPI_", "PMI", "SLURM_"))]
        assert not [name for name in theirs if not name.startswith(("OMPI_MCA_", "OMPI_ALLOW_"))]
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(500, 500))
        for step in range(4):
            if parameters["n"] % 3 == 2 and comm.rank == parameters["n"] % 2 and step == 2:
                raise ValueError("between two steps")
            model(torch.ones(1, 500)).sum().backward()
    with nnlo_opt.torch_process_group(comm):
        torch.distributed.barrier()
    return step


objective.parameter_range = [Integer(1, 50, name="n")]
"""


def test_fifty_trials_in_a_row_of_which_every_third_fails_on_one_rank_leave_nothing_behind(tmp_path):
    search(tmp_path, MANY, 3, *IN_BLOCKS_OF_TWO, "50", wait_s=600)
    for row in rows(tmp_path):
        assert row["state"] == ("failed" if int(row["p:n"]) % 3 == 2 else "complete"), row
        assert not row["reason"] or "between two steps" in row["reason"]
    for rank in range(2):
        found = [json.loads(line) for line in (tmp_path / f"rank-{rank}").read_text().splitlines()]
        files, memory, has_variables = zip(*found[5:], strict=True)  # later ones: torch imports in the first trial
        assert len(found) == 50
        assert max(files) == min(files)
        assert memory[-1] - memory[0] < 1e6 * len(memory)
        assert all(has_variables)


MISUSED = f"""{objectives.HEAD.replace("import time", "import time, nnlo_opt; from mpi4py import MPI")}
    group = nnlo_opt.torch_process_group
    if parameters["how"] == "twice":
        with group(comm), group(comm):
            pass
    elif parameters["how"] == "another":
        with group(comm):
            pass
        with group(None):
            pass
    with group({{"all": MPI.COMM_WORLD, "none": "comm"}}[parameters["how"]]):
        pass


objective.parameter_range = [Categorical(["twice", "another", "all", "none"], name="how")]
"""


def test_wrong_use_fails_the_trial_in_a_sentence(tmp_path):
    search(tmp_path, MISUSED, 3, *IN_BLOCKS_OF_TWO, "4", code=1)
    reasons = {row["p:how"]: row["reason"] for row in rows(tmp_path)}
    assert reasons["twice"] == reasons["another"]
    assert "Received: a second group, while" in reasons["twice"]
    assert "Received: MPI.COMM_WORLD, which has ranks outside of the block." in reasons["all"]
    assert "Received: str, which is not one. Pass the `comm` of the objective." in reasons["none"]
    assert summary(tmp_path)["n_trials"]["failed"] == 4


SCRIPT = """
import torch
from mpi4py import MPI
import nnlo_opt
for _ in range(3):
    with nnlo_opt.torch_process_group(MPI.COMM_WORLD):
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
    assert not torch.distributed.is_initialized()
open(f"total-{MPI.COMM_WORLD.rank}", "w").write(str(total.item()))
"""


def test_a_script_without_a_search_opens_one_group_after_another(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    launcher.run(2, ["python", "script.py"], tmp_path)
    assert [Path(tmp_path / f"total-{rank}").read_text() for rank in range(2)] == ["2.0", "2.0"]
