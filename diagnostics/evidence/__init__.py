"""Readers: convert files on disk to typed records, without verdicts."""
