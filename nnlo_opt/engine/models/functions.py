"""Functions `get_*` of a model module: those that we call, and the refusal of others.

A function that the module itself calls is a helper. A function that nothing calls would only seem to have an effect.
"""

import ast
import re
from collections.abc import Collection
from pathlib import Path

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.engine.models.builders import TrialDefinition, builtin_names, model_file
from nnlo_opt.engine.models.framework import syntax_tree

#: functions that are read; `engine.models.builders` describes them
READ = (
    "get_model",
    "get_name",
    "get_train",
    "get_val",
    "get_features",
    "get_labels",
    "get_loss",
    "get_loss_weights",
    "get_metrics",
    "get_callbacks",
    "get_optimizer",
    "get_scheduler",
    "get_custom_objects",
)
#: of these, those that act between epochs, by what they return
CALLED_AT_EPOCHS = {"Callbacks": "get_callbacks", "Schedule": "get_scheduler"}
#: those for a torch module
OF_TORCH = ("get_optimizer", "get_scheduler")
_OPTIMIZER = "{optimizer}, {learning_rate} and {optimizer_params} choose the optimizer"
_SCHEDULE = "{lr_schedule} and {warmup_epochs} choose the schedule"
_SPACE = "Name the parameters by `get_model.parameter_range`"
#: other functions that people write, with what does the same; names in braces are those of options
_INSTEAD = {
    "get_metric": "Call it `get_metrics`",
    **dict.fromkeys(("get_optimizer", "get_optimizers", "get_optim", "get_learning_rate"), _OPTIMIZER),
    **dict.fromkeys(("get_scheduler", "get_schedule", "get_lr_scheduler", "get_lr_schedule"), _SCHEDULE),
    **dict.fromkeys(("get_space", "get_search_space", "get_parameter_range", "get_parameters"), _SPACE),
    **dict.fromkeys(("get_data", "get_dataset", "get_datasets"), "Name data files by `get_train` and `get_val`"),
    **dict.fromkeys(("get_train_data", "get_training_data", "get_train_dataset"), "Call it `get_train`"),
    **dict.fromkeys(("get_val_data", "get_validation", "get_validation_data", "get_valid"), "Call it `get_val`"),
    **dict.fromkeys(("get_test", "get_test_data"), "`--test-data` names test data"),
    "get_epochs": "{epochs} sets it",
    "get_batch_size": "{batch} sets it",
    "get_class_weights": "{class_weights} sets them",
    "get_sample_weights": "{sample_weights_name} names their data set",
}


def refuse_unread(definition: TrialDefinition, figure: str | None = None) -> None:
    """Raise ConfigurationError if the module of a model defines a function `get_*` that nobody reads or calls.

    `figure`: value of `--figure-of-merit`, which may name one of its functions.
    """
    if definition.source in map(model_file, builtin_names()):
        return
    for file in _modules(definition):
        _refuse_unread_in(file, definition.functions, (figure or "").rpartition(":")[2])


def refuse_functions_of_torch(definition: TrialDefinition) -> None:
    """Raise ConfigurationError if the module of another model defines a function `OF_TORCH` that it does not call."""
    for file in _modules(definition):
        _refuse_unread_in(file, {*definition.functions} & {*OF_TORCH}, "", of_others=OF_TORCH)


def _modules(definition: TrialDefinition) -> list[Path]:
    files = (definition.source, definition.beside)
    return [file for file in files if file is not None and file.suffix == ".py"]


def _refuse_unread_in(file: Path, functions: Collection[str], figure: str, of_others: Collection[str] = ()) -> None:
    tree = syntax_tree(file)
    called = {name for statement in tree.body if not _is_of_script(statement) for name in _loaded(statement)}
    for name in _defined(tree):
        is_read = name in READ and name not in of_others
        if name in called or is_read or name == figure or name not in functions:
            continue
        instead = re.sub(r"\{(\w+)\}", lambda option: f"`{spelled(option[1])}`", _INSTEAD.get(name, ""))
        hint = f" {instead}." if instead else did_you_mean(name, READ)
        raise ConfigurationError(
            f"A function `get_*` of a model module must be one of {', '.join(READ)}. Received: `{name}` of {file}, "
            f"which nothing calls{' for this model' * bool(of_others)}.{hint} Remove it, or begin the name of a helper "
            "with an underscore."
        )


def _defined(tree: ast.Module) -> list[str]:
    """Return the names `get_*` that a module defines, and those it imports of which people expect an effect."""
    names = []
    for statement in tree.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.append(name)
            case ast.Assign(targets=targets):
                names += [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
            case ast.ImportFrom(names=aliases):
                imported = [alias.asname or alias.name for alias in aliases]
                names += [name for name in imported if name in _INSTEAD]
    return [name for name in names if name.startswith("get_")]


def _loaded(statement: ast.stmt) -> set[str]:
    """Return the names that a statement uses; a function that calls itself does not use it."""
    own = statement.name if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else None
    loads = (node for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return {node.id for node in loads} - {own}


def _is_of_script(statement: ast.stmt) -> bool:
    """Return True for a statement that has an effect only if the file is run as a script."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test)
    )
