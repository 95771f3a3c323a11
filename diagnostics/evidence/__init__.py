"""Readers: what was found on disk, as typed records. They give no verdicts."""
