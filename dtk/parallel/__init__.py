"""Process groups, meshes and precision: the building blocks of strategies."""
