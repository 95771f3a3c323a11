"""Readers: turn the files on disk into typed records. They give no verdicts."""
