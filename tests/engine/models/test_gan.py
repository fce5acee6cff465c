"""The GAN of showers: its losses, its passes, its copy of the discriminator, its figure of merit."""

import numpy as np
import pytest

from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.engine.data.sets.showers import simulate
from nnlo_opt.engine.models.composite import CompositeAdapter
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.models.builtin import gan
from tests.helpers.adapters import gradient, weights_of
from tests.helpers.refusals import check_refused

pytestmark = pytest.mark.keras
SHOWERS = simulate(24, 9, seed=0)
SETS = SHOWERS.datasets()
BATCH = SETS["X"], [SETS["y/a"], SETS["y/b"], SETS["y/c"]]
LOSSES = ("loss", "classification_loss", "energy_loss", "sum_cell_loss")


def made(**options):
    keras_model.set_seed(0)
    model = gan.get_model(latent_size=16, **options)
    return model, CompositeAdapter(model, (9, 9, 9, 1), TrainingOptions(optimizer="rmsprop"), seed=0)


@pytest.mark.proof
def test_both_models_have_three_losses_and_their_weighted_sum():
    _, adapter = made(gen_weight=3.0, aux_weight=0.5, ecal_weight=0.25)
    means = gradient(adapter, BATCH)[1].means()
    names = ["discriminator_model", "combined_model"]
    assert [*means] == ["loss", *(f"{name}_{loss}" for name in names for loss in LOSSES)]
    for name in names:
        total, flag, energy, cells = (means[f"{name}_{loss}"] for loss in LOSSES)
        assert total == pytest.approx(3 * flag + 0.5 * energy + 0.25 * cells, rel=1e-4)
    tested = adapter.evaluate(*BATCH).means()
    assert tested == adapter.evaluate(*BATCH).means(), "validation draws the same noise each time"


def test_only_the_generator_and_the_discriminator_are_exchanged():
    model, adapter = made()
    n_discriminator = gan.build_discriminator(9, 0.2).count_params()
    assert adapter.n_weights == n_discriminator + model.generator.count_params()


@pytest.mark.proof
@pytest.mark.parametrize(
    "options", [{"one_pass": True}, pytest.param({"reverse": True}, marks=pytest.mark.proof)], ids=str
)
def test_passes_are_as_asked(options):
    first, other = made()[1], made(**options)[1]
    assert np.array_equal(weights_of(first), weights_of(other))
    (one, _), (two, _) = gradient(first, BATCH), gradient(other, BATCH)
    assert np.isfinite(two).all()
    assert (two != one).any()
    both = two[: len(two) // 2], two[len(two) // 2 :]
    assert all(np.abs(half).max() > 0 for half in both)


@pytest.mark.proof
def test_variables_of_the_environment_ask_for_passes_too(monkeypatch, tmp_path):
    asked, _ = gradient(made(one_pass=True)[1], BATCH)
    monkeypatch.setenv("GANONEPASS", "1")
    monkeypatch.setenv("GANCHECKPOINT", "1")
    monkeypatch.setenv("GANCHECKPOINTLOC", str(tmp_path / "kept"))
    found, _ = gradient(made()[1], BATCH)
    assert np.array_equal(asked, found)
    assert [path.name.startswith("mpi_generator_") for path in (tmp_path / "kept").iterdir()] == [True]
    monkeypatch.setenv("GANREVERSED", "yes")
    check_refused("`GANREVERSED` must be a whole number. Received: 'yes'", made)


def test_the_figure_of_merit_is_far_for_an_untrained_generator():
    _, adapter = made()
    figure = gan.figure_of_merit({}, adapter.synced_model(), [BATCH, BATCH])
    assert figure > 0.8


def test_showers_of_another_shape_are_refused():
    keras_model.set_seed(0)
    check_refused("GetData showers", CompositeAdapter, gan.get_model(), (28, 28, 1), TrainingOptions(), seed=0)


@pytest.mark.parametrize(("y", "found"), [(SETS["y/b"], "one data set"), ([SETS["y/a"], SETS["y/b"]], "a group of 2")])
def test_other_labels_are_refused(y, found):
    check_refused(f"Received: {found}", gradient, made()[1], (BATCH[0], y))
