"""Detectors: evidence -> findings. One sub-package per kind of trouble."""
