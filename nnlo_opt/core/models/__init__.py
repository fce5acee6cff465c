"""Interfaces of models, and the layout of their weights."""
