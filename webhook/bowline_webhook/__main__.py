"""``python -m bowline_webhook``."""

from bowline_webhook.app import main

if __name__ == "__main__":
    main()
