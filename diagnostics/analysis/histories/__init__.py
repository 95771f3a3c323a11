"""One pass over the files of all ranks: which rank issued what at which position of which group. No verdicts."""
