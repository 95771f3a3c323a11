"""The readers: one file for each kind of evidence, ending in its `READER`. The folder is the registry."""
