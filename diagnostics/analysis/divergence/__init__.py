"""Which ranks' calls differ, and how: `find` for histories, `single_calls` for single ones, `identity` for two."""
