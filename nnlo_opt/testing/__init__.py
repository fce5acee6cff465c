"""Conformance suites, with in-memory counterparts of adapters, shipped so that extensions can use them."""
