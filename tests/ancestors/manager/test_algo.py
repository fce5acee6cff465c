import pytest

from nnlo_opt.ancestors.manager.algo import Algo
from tests.helpers.refusals import check_refused


def options_of(algo, n_workers=2):
    return algo.options(n_workers=n_workers, batch=10, epochs=3)


def test_the_arguments_of_mpi_learn():
    algo = Algo("adam", loss="categorical_crossentropy", validate_every=1000, sync_every=2, worker_optimizer="sgd")
    options = options_of(algo)
    assert (options.mode, options.optimizer, options.sync_every) == ("downpour", "adam", 2)
    assert (options.loss, options.worker_optimizer) == ("categorical_crossentropy", "sgd")
    assert algo.validates


def test_the_arguments_of_nnlo_name_the_framework_too():
    assert options_of(Algo("adamtf", mode="sgd", worker_optimizer_params="{}")).optimizer == "adam"


def test_parameters_of_the_optimizer_are_arguments():
    options = options_of(Algo("sgd", lr=0.1, momentum=0.9, nesterov=True))
    assert options.learning_rate == 0.1
    assert options.optimizer_params == {"momentum": 0.9, "nesterov": True}
    for both in ({"lr": 0.1, "learning_rate": 0.2}, {"learning_rate": 0.2, "lr": 0.1}):
        assert options_of(Algo("sgd", **both)).learning_rate == 0.1


def test_the_elastic_force_is_alpha_and_ours_is_beta():
    algo = Algo(None, mode="easgd", worker_optimizer="adam", elastic_force=0.3, elastic_lr=0.01)
    assert options_of(algo, n_workers=3).of_rules["elastic_force"] == pytest.approx(0.9)
    assert options_of(Algo(None, mode="easgd"), n_workers=3).of_rules["elastic_force"] == 0.9
    assert options_of(Algo(None, mode="easgd")).worker_optimizer == "sgd"


def test_gem_as_nnlo_has_it():
    options = options_of(Algo("gem", mode="gem", learning_rate=0.02, momentum=0.8, kappa=3.0))
    own = {name: value for name, value in options.of_rules.items() if name.startswith("gem")}
    assert (options.mode, own) == ("gem", {"gem_lr": 0.02, "gem_momentum": 0.8, "gem_kappa": 3.0})


def test_a_validate_every_of_0_switches_validation_off():
    assert not Algo("adam", validate_every=0).validates
    assert Algo("adam", validate_every=41.5).validates


def test_options_of_ours_go_through():
    options = options_of(Algo("adam", synchronous=True, early_stopping="val_loss,<,3", lr_schedule="cosine"))
    assert (options.synchronous, options.early_stopping, options.lr_schedule) == (True, "val_loss,<,3", "cosine")


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ({"optimizer": "adam", "beta": 1}, "'beta'"),
        ({"optimizer": "adamax"}, "'adamax'"),
        ({"optimizer": "adam", "mode": "hogwild"}, "'hogwild'"),
        ({"optimizer": "adam", "validate_every": -1}, "-1"),
        ({"optimizer": None}, "None"),
        ({"optimizer": None, "mode": "easgd", "rho": 1}, "'rho'"),
        ({"optimizer": "adam", "worker_optimizer_params": "{"}, "'{'"),
        ({"optimizer": "adam", "sync_every": 0}, "0"),
        ({"optimizer": "adam", "early_stopping": "val_loss"}, "val_loss"),
        ({"optimizer": "adam", "loss": "cubed_error"}, "'cubed_error'"),
        ({"optimizer": None, "mode": "easgd", "elastic_force": -0.5, "worker_optimizer": "no"}, "'no'"),
    ],
)
def test_wrong_arguments_are_refused_by_a_sentence(arguments, received):
    check_refused(received, Algo, **arguments)


def test_an_algo_can_be_printed():
    text = str(Algo("adam", loss="mse"))
    assert text.startswith("Algo(optimizer=adam, ")
    assert "loss=mse" in text
