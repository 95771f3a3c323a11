"""What holds for all tests: imports and collected tests live to the end, so the collector walks them rarely."""

import gc

gc.set_threshold(100_000)
