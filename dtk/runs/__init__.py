"""What `dtk ls`, `show`, `rerun` and `rm` share: which run was named, which are selected, what may be removed."""
