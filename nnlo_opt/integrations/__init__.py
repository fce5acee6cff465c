"""Callbacks that turn a framework's own training loop into a trial, one module per framework."""
