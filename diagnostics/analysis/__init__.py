"""Formal objects made from evidence, one owner for each question. No causes, no verdicts."""
