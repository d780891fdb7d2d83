"""``python -m reconciler``."""

from reconciler.app import main

if __name__ == "__main__":
    main()
