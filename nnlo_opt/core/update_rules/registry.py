"""Update rules by their names in `--mode`."""

from nnlo_opt.core.update_rules.allreduce import Allreduce
from nnlo_opt.core.update_rules.downpour import Downpour
from nnlo_opt.core.update_rules.easgd import Easgd
from nnlo_opt.core.update_rules.gem import GradientEnergyMatching
from nnlo_opt.core.update_rules.rule import UpdateRule

#: name -> rule; a new built-in rule needs a line here; the first rule is the default
RULES: dict[str, UpdateRule] = {
    rule.name: rule for rule in (Downpour(), Easgd(), GradientEnergyMatching(), Allreduce())
}


def default_values() -> dict[str, float | None]:
    """Return option -> default of all options of single rules."""
    return {option.name: option.default for rule in RULES.values() for option in rule.options}
