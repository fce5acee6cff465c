"""Conformance suites and fakes, shipped so that extensions can use them."""
