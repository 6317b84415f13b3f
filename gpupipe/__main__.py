"""`python -m gpupipe`: the same as the `gpupipe` command."""

import sys

from gpupipe.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
