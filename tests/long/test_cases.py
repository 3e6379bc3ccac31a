"""Faults from public bug reports: two recordings of each, and the verdict that leads to the cause.

The scripts are small trainings with a fault, made after the reports; `--run a` and `--run b` are
the two runs.
"""
