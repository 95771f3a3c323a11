"""The fault trees (YAML) and what is done with them: loading, evaluation, arbitration, export."""
