"""``python -m bowline.webhook``."""

from bowline.webhook.app import main

if __name__ == "__main__":
    main()
