"""Process groups, meshes and precision: what strategies are built from."""
