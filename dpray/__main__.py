"""`python -m dpray` is the command `dpray`."""

import sys

from dpray.cli import main

sys.exit(main())
