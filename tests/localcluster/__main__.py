"""`python -m tests.localcluster`; see `commands`."""

import sys

from tests.localcluster.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
