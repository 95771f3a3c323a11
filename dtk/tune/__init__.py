"""`dtk tune`: the micro-batch, the preset, the bucket size or the wrapping that is fastest here, by short runs."""
