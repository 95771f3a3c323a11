"""Simulation of one rank of a job in this process, without the other ranks, their memory or their devices."""
