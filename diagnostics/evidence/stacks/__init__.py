"""Stacks of living or dying processes, and what a thread does at its innermost frame."""
