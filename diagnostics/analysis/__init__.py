"""Formal objects built from evidence, one owner for each question. No causes, no verdicts."""
