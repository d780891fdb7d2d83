"""``python -m bowline_cli``."""

import sys

from bowline_cli.main import main

if __name__ == "__main__":
    sys.exit(main())
