"""The plugin's own arguments: which checks there are, and for which pods."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bowline.framework.config import PositiveDuration
from bowline.framework.interface.plugin import PluginConfig
from bowline.framework.reason import Suggestion

# A label's value, and the beginning of an object's name.
_NAME = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_MODEL = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Check(PluginConfig):
    """One check: what it is called, for which pods it is asked, and what follows without a consent."""

    model_config = _MODEL

    name: Annotated[str, Field(pattern=_NAME)]
    """What the controller that answers selects its BindChecks by."""
    namespaces: tuple[str, ...] = ()
    """The namespaces in which it is asked for every pod, or "*" for all; elsewhere for the pods that name it."""
    timeout: PositiveDuration = timedelta(minutes=5)
    """How long a request waits for the answer; then it ends Failed/WaitTimeout."""
    timeout_suggestion: Suggestion = Suggestion.RETRY_SAME_NODE
    """What the scheduler may do about a request that had no answer in time."""
    denial_suggestion: Suggestion = Suggestion.RESCHEDULE_ELSEWHERE
    """What the scheduler may do about a request that was denied."""


def _with_different_names(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    names = [check.name for check in checks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"must have one name each; twice: {', '.join(twice)}")
    return checks


class ChecksConfig(PluginConfig):
    """``args`` of checks."""

    model_config = _MODEL

    checks: Annotated[tuple[Check, ...], AfterValidator(_with_different_names)] = ()
    """The checks, in the order in which they are asked: all of a pod's at once."""

    def named(self, name: str) -> Check | None:
        """Return the check of that name; None if it is not configured."""
        return next((check for check in self.checks if check.name == name), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all checks."""
        return tuple(check.name for check in self.checks)
