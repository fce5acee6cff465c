"""Callbacks that make a training by another framework a trial of a search, a module for each framework."""
