"""`python -m dtk`: the same as the `dtk` command."""

import sys

from dtk.cli import main

sys.exit(main())
