"""Ranks that disagree about the sequence of collectives."""
