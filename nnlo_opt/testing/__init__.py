"""Conformance suites, with in-memory counterparts of adapters, shipped so that extensions can use them."""

import sys

if "pytest" in sys.modules:  # failed assertions show their values
    suites = (
        "model_conformance",
        "pruner_conformance",
        "rule_conformance",
        "search_conformance",
        "transport_conformance",
    )
    sys.modules["pytest"].register_assert_rewrite(*(f"{__name__}.{name}" for name in suites))
