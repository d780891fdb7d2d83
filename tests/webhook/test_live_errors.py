"""Errors that depend on what is stored: denied in Enforce, warned about in Warn, not looked for in Off."""

from typing import Any

import pytest

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.framework.config import AdmissionMode
from bowline_webhook.hooks import Hook, Review
from bowline_webhook.tls.ca import Leaf
from tests.unit.webhook.reviews import bind_request, review
from tests.webhook.served import served

STORED = FieldError(
    Rule("bindrequest/repeated", "a test's"), "spec.selectedNode", "n", "this decision failed 1 s ago"
)


def stored_errors(hook: Hook, incoming: Review) -> tuple[FieldError, ...]:
    """There is one for every review."""
    return (STORED,)


@pytest.mark.parametrize(
    ("mode", "fields", "is_allowed", "warnings", "rules"),
    [
        pytest.param("Enforce", {}, False, 0, "bindrequest/repeated", id="denied in Enforce"),
        pytest.param("Warn", {}, True, 1, "bindrequest/repeated", id="a warning in Warn"),
        pytest.param("Off", {}, True, 0, None, id="not looked for in Off"),
        pytest.param("Enforce", {"selectedNode": 5}, False, 0, "bindrequest/schema", id="the object's own, alone"),
    ],
)
async def test_a_stored_error(
    leaf: Leaf, mode: AdmissionMode, fields: dict[str, Any], is_allowed: bool, warnings: int, rules: str | None
) -> None:
    request = review(bind_request(**fields), group="scheduling.run.ai", kind="BindRequest")
    async with served(leaf, mode=mode, stored_errors=stored_errors) as listener:
        response = await listener.review(Hook.MUTATE_BIND_REQUESTS, request)
    assert response["allowed"] is is_allowed
    assert len(response.get("warnings", ())) == warnings
    assert response.get("auditAnnotations", {}).get("rules") == rules
