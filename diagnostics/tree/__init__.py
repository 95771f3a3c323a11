"""The fault trees (YAML): loading, evaluation, arbitration, export."""
