"""Other libraries that train under the same configuration."""
