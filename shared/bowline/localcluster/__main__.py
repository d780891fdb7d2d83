"""`python -m bowline.localcluster`; see `commands`."""

import sys

from bowline.localcluster.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
