import pytest

from nnlo_opt.training.figure import figure_name, figure_of_merit


@pytest.mark.parametrize(
    ("metrics", "name", "figure"),
    [
        ({"loss": 3.0, "acc": 0.9, "val_loss": 2.0, "val_acc": 0.75}, "1 - val_acc", 0.25),
        ({"loss": 3.0, "val_loss": 2.0}, "val_loss", 2.0),
        ({"loss": 3.0, "acc": 0.9}, "loss", 3.0),
        ({"loss": 3.0}, "loss", 3.0),
    ],
)
def test_the_figure_is_the_error_rate_else_the_validation_loss_else_the_loss(metrics, name, figure):
    assert figure_name(metrics) == figure_name(tuple(metrics)) == name
    assert figure_of_merit(metrics) == figure


def test_lower_is_better_for_every_figure():
    assert figure_of_merit({"loss": 1.0, "val_loss": 1.0, "val_acc": 0.9}) < figure_of_merit(
        {"loss": 0.1, "val_loss": 0.1, "val_acc": 0.8}
    )
