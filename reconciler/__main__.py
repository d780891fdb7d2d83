"""``python -m bowline.reconciler``."""

from bowline.reconciler.app import main

if __name__ == "__main__":
    main()
