"""Functions shared by `dtk ls`, `show`, `rerun` and `rm`: which run is named or selected, what it ran, and what may be removed."""
