"""What writers, readers, causes and reports share: the run folder's layout, findings, names. Imports no other layer."""
