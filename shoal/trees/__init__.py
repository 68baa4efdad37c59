"""Gradient-boosted trees: samples as a matrix, and the texts of their libraries, checked."""
