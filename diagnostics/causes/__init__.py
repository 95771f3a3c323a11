"""One file per cause, in a folder per family: its facts, decision and texts. `registry` collects them."""
