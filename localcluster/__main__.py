"""`python -m localcluster`; see `commands`."""

import sys

from localcluster.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
