"""Tests of nnlo_opt, with what they share in `helpers`."""
