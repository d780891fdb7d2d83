"""The parts of docs/suggestions.md and of the chart's alerts that the reasons of failures decide."""

import re
from pathlib import Path
from typing import Final

from bowline.framework.reason import Alert, Reason, Suggestion
from tools.generate.tables import table

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "suggestions.md"
ALERTS: Final = ROOT / "charts" / "bowline" / "files" / "alerts.yaml"
_NONE: Final = (
    "no scheduling decision helps: the pod is deleted or running, or the cause in the reason must be fixed first, in "
    "the pod, its claims or the configuration"
)
# The requests that BowlineRequestsFailing does not count, and those that BowlineInstallationIncomplete counts.
_FAILING: Final = re.compile(r'reason!~"[^"]*"')
_INSTALLATION: Final = re.compile(r'reason=~"[^"]*"')


def suggestions() -> str:
    """Return docs/suggestions.md with its two tables as the values have them."""
    meanings = [*((f"`{each.value}`", each.meaning) for each in Suggestion), ("none", _NONE)]
    cases = [
        (f"`{reason.value}`", f"`{suggestion.value}`" if suggestion else "none", when)
        for reason in Reason
        for suggestion, when in reason.cases.items()
    ]
    text = PAGE.read_text(encoding="utf-8")
    text = _between(text, "suggestions", table(("suggestion", "meaning"), meanings))
    return _between(text, "failures", table(("reason", "suggestion", "when"), cases))


def alerts() -> str:
    """Return the chart's alerts with the reasons that each of them counts."""
    not_failures = "|".join(["Succeeded", *(reason.value for reason in Reason if reason.alert is Alert.NONE)])
    incomplete = "|".join(reason.value for reason in Reason if reason.alert is Alert.INSTALLATION)
    text = _FAILING.sub(f'reason!~"{not_failures}"', ALERTS.read_text(encoding="utf-8"))
    return _INSTALLATION.sub(f'reason=~"{incomplete}"', text)


def _between(text: str, name: str, content: str) -> str:
    begin, end = f"<!-- {name}: `make generate` writes this -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{content}\n{end}{rest.partition(end)[2]}"
