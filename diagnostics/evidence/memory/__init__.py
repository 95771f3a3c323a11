"""Memory evidence: allocator snapshots, dtk's timelines, and the categories of bytes."""
