"""Two ranks' calls compared: what kind of difference it is. Knows no ranks."""
