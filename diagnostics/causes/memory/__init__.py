"""Causes of memory running out, now or with more ranks or steps, one per file."""
