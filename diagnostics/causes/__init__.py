"""One file per cause in a folder per family: its facts, how it is decided, its texts. `registry` collects them."""
