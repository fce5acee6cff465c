"""The process group of torch outside of ranks: variables of `torchrun`, and a group of one."""

import os
import sys

import pytest

import nnlo_opt
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.objective.torch_group import Place, clear_frames, in_environment


def test_ranks_are_counted_on_each_node():
    places = [Place.of(rank, ["b", "a", "b", "a", "a"]) for rank in range(5)]
    found = [(place.local_rank, place.local_size, place.node) for place in places]
    assert found == [(0, 2, 0), (0, 3, 1), (1, 2, 0), (1, 3, 1), (2, 3, 1)]
    variables = places[3].variables("host", 1234)
    assert (variables["RANK"], variables["LOCAL_RANK"], variables["GROUP_WORLD_SIZE"]) == ("3", "1", "2")
    alone = places[3].alone().variables("host", 1234)
    assert (alone["RANK"], alone["LOCAL_RANK"], alone["LOCAL_WORLD_SIZE"], alone["GROUP_RANK"]) == ("3", "0", "1", "3")


def test_the_environment_is_as_before_after_the_context(monkeypatch):
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_NTASKS", "RANK"):
        monkeypatch.setenv(name, "7")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = dict(os.environ)
    with in_environment({"RANK": "0", "WORLD_SIZE": "1"}):
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
        assert not os.environ.keys() & {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_NTASKS"}
    assert dict(os.environ) == before


def test_frames_of_an_error_and_of_its_causes_are_cleared():
    def fails(model, cause=None):
        raise ValueError from cause

    errors = []
    for _ in range(2):
        with pytest.raises(ValueError) as raised:
            fails(object(), *errors)
        errors.append(raised.value)
    errors[0].__cause__ = errors[0]  # as an error may be raised from itself
    frames = [error.__traceback__.tb_next.tb_frame for error in errors]
    clear_frames(errors[-1])
    assert not any(frame.f_locals for frame in frames)


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"nnlo_opt\[torch\]"), nnlo_opt.torch_process_group():
        pass


@pytest.mark.needs("torch")
def test_a_group_of_one_ends_with_its_context_also_by_an_error():
    import torch

    def train():
        with nnlo_opt.torch_process_group() as device:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
            model(torch.ones(1, 1)).backward()
            assert (os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"]) == ("1", "127.0.0.1")
            raise ValueError("mine")

    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            train()
        assert not torch.distributed.is_initialized()


@pytest.mark.needs("accelerate")
def test_accelerate_forgets_the_ranks_that_it_has_found(monkeypatch):
    from accelerate import PartialState

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    PartialState(cpu=True)
    with nnlo_opt.torch_process_group():
        assert not PartialState._shared_state
        assert PartialState(cpu=True).num_processes == 1
    assert not PartialState._shared_state
    assert "accelerate.state" in sys.modules
