"""Ranks that ended while others went on: how, who first, and in the middle of what."""
