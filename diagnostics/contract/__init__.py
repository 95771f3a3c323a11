"""Types shared by writers, readers, causes and reports: run folder layout, findings, names. Imports no other layer."""
