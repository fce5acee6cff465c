import pytest

from nnlo_opt.app.api.words import python_words


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("`--num-iterations` must be at least 1", "`num_iterations` must be at least 1"),
        ("add `--opt-restore` to resume", "add `opt_restore=True` to resume"),
        ("`--opt-restore` must be True or False", "`opt_restore` must be True or False"),
        ("leave `--no-overlap` out", "leave `overlap=False` out"),
        ("take `--max-failures 0`", "take `max_failures=0`"),
        ("of `--hyper-opt grid`", 'of `hyper_opt="grid"`'),
        ("by `--objective val_loss:min`", 'by `objective="val_loss:min"`'),
        ("by `--no-shuffle`", "by `shuffle=False`"),
        ("give `--search-space MODULE`", "give `space`"),
        ("`--model` must name a file", "`target` must name a file"),
        ("Write it as `--fix dropout=0.5`", 'Write it as `fix={"dropout": 0.5}`'),
        ("(`--start-point`, `nnlo-opt enqueue`)", "(`start_point`, `study.enqueue`)"),
        ("`--hang-timeout 5`, `TrainingDriver --from-run a`", "`--hang-timeout 5`, `TrainingDriver --from-run a`"),
    ],
)
def test_options_in_a_sentence_become_arguments_of_python(said, meant):
    assert python_words(said) == meant
