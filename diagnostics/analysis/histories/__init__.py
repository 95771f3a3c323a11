"""One pass over the files of all ranks: who issued what at which position of which group. No verdicts."""
