"""Profiler traces (Kineto, Nsight Systems) as compact columns."""
