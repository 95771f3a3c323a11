"""Other training libraries behind the same configuration."""
