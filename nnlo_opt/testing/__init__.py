"""Conformance tests for custom components: inherit from a suite to test your own class."""

import sys

if "pytest" in sys.modules:  # so that failed assertions show their values
    suites = (
        "model_conformance",
        "pruner_conformance",
        "rule_conformance",
        "search_conformance",
        "transport_conformance",
    )
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{name}" for name in suites))
