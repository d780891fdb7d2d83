"""The parts of the chart's alerts that the reasons of failures decide."""

import re
from pathlib import Path
from typing import Final

from bowline.framework.reason import Alert, Reason

ROOT: Final = Path(__file__).resolve().parents[2]
ALERTS: Final = ROOT / "charts" / "bowline" / "files" / "alerts.yaml"
# The requests that BowlineRequestsFailing does not count, and those that BowlineInstallationIncomplete counts.
_FAILING: Final = re.compile(r'reason!~"[^"]*"')
_INSTALLATION: Final = re.compile(r'reason=~"[^"]*"')


def alerts() -> str:
    """Return the chart's alerts with the reasons that each of them counts."""
    not_failures = "|".join(["Succeeded", *(reason.value for reason in Reason if reason.alert is Alert.NONE)])
    incomplete = "|".join(reason.value for reason in Reason if reason.alert is Alert.INSTALLATION)
    text = _FAILING.sub(f'reason!~"{not_failures}"', ALERTS.read_text(encoding="utf-8"))
    return _INSTALLATION.sub(f'reason=~"{incomplete}"', text)
