"""Needs a module that is not installed."""

from bowline_no_such_dependency import licences  # type: ignore[import-not-found]

from bowline import AdmissionPlugin


class Dependent(AdmissionPlugin):
    """Does nothing else."""

    name = "dependent"
    licences = licences
