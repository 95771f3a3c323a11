"""Runs a remedy and shows whether it holds: `dtk diagnose RUN --verify-fix`."""
