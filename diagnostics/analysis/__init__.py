"""Typed results computed from evidence, with one owner for each question. Contains no causes and no verdicts."""
