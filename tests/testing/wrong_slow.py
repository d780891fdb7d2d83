"""Takes too long at import."""

import time

from bowline import AdmissionPlugin

time.sleep(2.5)


class Slow(AdmissionPlugin):
    """Does nothing else."""

    name = "slow"
