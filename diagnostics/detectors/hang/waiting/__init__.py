"""Ranks that wait: for whom, in a circle or for one that stands still, is late or never came."""
