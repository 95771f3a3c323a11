"""NCCL's variables: presets with reasons, the linter's command, recommendation and export."""
