"""Where memory went: allocator snapshots, dtk's timelines, and the words for what bytes are for."""
