"""Compares a model, objective or command with that of the run to resume: refused and merely reported differences."""

from nnlo_opt.core.trials.identity import COMMAND, DIGEST, ModelFile
from nnlo_opt.engine.objective.template import Template


def differing(option: str, before: object, now: object) -> str:
    """Describe the difference of an option."""
    was, is_now = ("not given" if value is None else value for value in (before, now))
    return f"`{option}` differs: it was {was}, now {is_now}"


def model_difference(known: ModelFile, asked: ModelFile) -> str:
    """Describe what makes `asked` a different model from `known`; empty if it is the same.

    Runs of older versions have a single checksum of all parts and notes of an objective.
    """
    is_old = known.notes is None
    if known.sha256 == asked.sha256 and (is_old or asked.notes is None):
        return ""
    if COMMAND in known.parts and COMMAND in asked.parts:
        return _command_difference(known, asked)
    if not (known.function and asked.function):
        return f"the model file has changed: `{known.source}`, now `{asked.source}`"
    if is_old or asked.notes is None:
        values = ", or a plain value that it names," * (asked.notes is not None)
        return f"the function `{known.function}`{values} has changed"
    changed = [name for name in known.parts | asked.parts if known.parts.get(name) != asked.parts.get(name)]
    if not changed:
        return ""
    own = next(iter(asked.parts))
    called = changed[0] not in (own, next(iter(known.parts)))
    name, calls = (changed[0], f", which `{known.function}` calls,") if called else (known.function, "")
    return f"the function `{name}`{calls} has changed"


def _command_difference(known: ModelFile, asked: ModelFile) -> str:
    is_old = known.notes is None
    before, now = _all(known), _all(asked)
    for name in before | now:
        if before.get(name) == now.get(name):
            continue
        if name.startswith("--"):
            return differing(name, before.get(name), now.get(name))
        if name in asked.parts and not (is_old and name not in before):  # older versions omitted compiled programs
            return f"the file `{name}` differs"
        if name in known.parts and name not in now and not is_old:
            return f"the file `{name}` is missing"
    return ""


def model_remark(known: ModelFile, asked: ModelFile) -> str:
    """Return a remark on notes of an objective that differ although it counts as the same; empty without any."""
    if asked.notes is None:
        return ""
    before, now = _all(known), asked.notes
    if COMMAND in asked.parts:
        others = [name for name in before | now if name not in asked.parts]
        changed = [f"`{name}`" for name in others if before.get(name) != now.get(name)]
        rule = "Files that the command names have changed since the last start; the run continues"
        doubt = "If the script reads them, earlier trials may have had another objective."
    else:
        both = [name for name in now if name in before and before[name] != now[name]]
        changed = [_value_text(name, before[name], now[name]) for name in both]
        rule = "Values that the objective names have changed since the last start; the run continues"
        doubt = "If it computes with them, earlier trials had another objective."
    return f"{rule}: {', '.join(changed)}. {doubt}" if changed else ""


def _all(model: ModelFile) -> dict[str, str]:
    """Return parts and notes; commands are equal if they pass the same values to a script."""
    text = {COMMAND: Template(model.parts[COMMAND]).fingerprint_text} if COMMAND in model.parts else {}
    return {**model.parts, **(model.notes or {}), **text}


def _value_text(name: str, before: str, now: str) -> str:
    is_hidden = before.startswith(DIGEST) or now.startswith(DIGEST)
    return f"`{name}`" if is_hidden else f"`{name}` was {before} and is {now}"
