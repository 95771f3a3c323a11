"""Typed, strictly checked configuration. Never imports torch."""
