"""What `task=` chooses: what a batch means, its loss and its metrics."""
