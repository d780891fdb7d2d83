"""``python -m bowline.cli``."""

import sys

from bowline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
