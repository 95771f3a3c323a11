"""Stacks of living or dying processes, and what a thread does where it stands."""
