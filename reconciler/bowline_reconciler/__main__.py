"""``python -m bowline_reconciler``."""

from bowline_reconciler.app import main

if __name__ == "__main__":
    main()
