"""Process groups, meshes and precision: the parts of which strategies are built."""
