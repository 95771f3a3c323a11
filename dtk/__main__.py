"""`python -m dtk`: the same as the `dtk` command."""

import sys

from dtk.commands.main import main

sys.exit(main())
