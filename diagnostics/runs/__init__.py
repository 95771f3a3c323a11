"""Run folders: found, listed, and read in small records. Never fails on a damaged one."""
