"""Prediction of a run before its launch: memory, communication and time of one step."""
