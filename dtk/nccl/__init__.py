"""NCCL's variables: presets with reasons, the linter's command, what fits this machine, and other forms of a preset."""
