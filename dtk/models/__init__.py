"""What `model=` chooses."""
