"""``python -m tests.availability.webhook``: the webhook, with certificates that are valid for seconds.

``BOWLINE_TEST_LIFETIMES``: the seconds of a serving certificate, of its CA, and the grace period for API servers,
separated by commas.
"""

import os
from dataclasses import replace
from datetime import timedelta

from bowline_webhook.app import main
from bowline_webhook.options import parse_options
from bowline_webhook.tls.rotation import CertLifetimes

LIFETIMES = "BOWLINE_TEST_LIFETIMES"

if __name__ == "__main__":
    leaf, authority, grace = (timedelta(seconds=float(part)) for part in os.environ[LIFETIMES].split(","))
    main(replace(parse_options(), lifetimes=CertLifetimes(leaf, authority, grace)))
