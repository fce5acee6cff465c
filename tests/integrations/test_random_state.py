"""Random state beside the weights of a training: what is drawn after it is set is what would have been drawn."""

import random

import numpy as np
import pytest

from nnlo_opt.engine.models.plain_data import packed, unpacked
from nnlo_opt.integrations.random_state import load_random_state, save_random_state


class Sampler:
    """A sampler with a state and two generators, one of them that of its loader."""

    def __init__(self):
        self.generator, self.rng, self.n = np.random.default_rng(1), random.Random(1), 0

    def state_dict(self):
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


class Loader:
    def __init__(self):
        self.sampler = Sampler()
        self.generator, self.batch_sampler = self.sampler.generator, None


def drawn(*loaders):
    """Numbers of every kind."""
    numbers = [random.random(), float(np.random.random())]
    for loader in loaders:
        loader.sampler.n += 1
        numbers += [loader.generator.random(), loader.sampler.rng.random(), loader.sampler.n]
    return numbers


def test_what_is_drawn_is_what_would_have_been_drawn(tmp_path):
    loader, legacy = Loader(), np.random.RandomState(3)
    before = random.getstate(), np.random.get_state()
    drawn(loader)
    save_random_state(tmp_path, {"train": loader}, [legacy])
    expected = [*drawn(loader), legacy.random()]
    again, other = Loader(), np.random.RandomState(4)
    load_random_state(tmp_path, {"train": again}, [other])
    assert [*drawn(again), other.random()] == expected
    random.setstate(before[0])
    np.random.set_state(before[1])


@pytest.mark.parametrize("kind", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_every_generator_of_numpy_is_saved(tmp_path, kind):
    generator, other = (np.random.Generator(getattr(np.random, kind)(seed)) for seed in (1, 2))
    generator.normal(size=3)
    save_random_state(tmp_path, generator)
    load_random_state(tmp_path, other)
    assert other.normal(size=3).tolist() == generator.normal(size=3).tolist()


def test_a_trial_that_begins_and_a_save_of_an_earlier_version_keep_their_numbers(tmp_path, caplog):
    before = random.getstate()
    load_random_state(None)
    assert not caplog.records
    load_random_state(tmp_path)
    assert "has no random state: shuffling and dropout differ" in caplog.text
    assert random.getstate() == before


def test_other_generators_than_those_saved_are_refused(tmp_path):
    save_random_state(tmp_path, Loader())
    before = random.getstate()
    with pytest.raises(ValueError, match=r"Received: 0 instead of 3\. Give the same ones in the same order\."):
        load_random_state(tmp_path)
    assert random.getstate() == before


def test_a_sampler_that_follows_its_epoch_has_no_state(tmp_path):
    class Seeded:
        """As of Accelerate, which makes its generator anew in each epoch."""

        generator = np.random.default_rng(0)

        def set_epoch(self, epoch):
            pass

    save_random_state(tmp_path, Seeded())
    state = unpacked(np.frombuffer((tmp_path / "random.bin").read_bytes(), np.uint8))
    assert state["sources"] == []
    assert packed(state).tobytes() == (tmp_path / "random.bin").read_bytes()


@pytest.mark.needs("torch")
def test_torch_and_the_generators_of_its_loaders_are_saved(tmp_path):
    import torch

    def loader():
        generator = torch.Generator().manual_seed(5)
        return torch.utils.data.DataLoader(range(20), batch_size=4, shuffle=True, generator=generator)

    def numbers(of):
        return [batch.tolist() for batch in of], torch.rand(3).tolist()

    one, other = loader(), loader()
    numbers(one)
    save_random_state(tmp_path, one)
    expected = numbers(one)
    load_random_state(tmp_path, other)
    assert numbers(other) == expected
