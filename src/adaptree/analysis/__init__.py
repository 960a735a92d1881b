"""Comparisons, experiments, explanations and suggestions."""
