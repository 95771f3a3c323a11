"""Hangs of which a divergence, logs or stacks tell; the causes are in `diagnostics.causes.hang`."""
