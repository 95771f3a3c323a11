"""Run folders for `dtk ls`, `show`, `rerun`, `rm` and `trace`: which one is named, what it ran, what may be removed."""
