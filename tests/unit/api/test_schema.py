"""The message for a value that a model rejects uses the terms of the document, not Python's."""

from typing import Any

import pytest

from bowline.framework.config import ConfigurationError, parse_settings

HEAD = "apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n"

WORDS: list[Any] = [
    pytest.param("schedulerNames: a", 'schedulerNames: "a": must be a list', id="a word for a list"),
    pytest.param("schedulerNames: [1]", "schedulerNames[0]: 1: must be a string; put it in quotes",
        id="a number in a list"),
    pytest.param("binding:", "binding: null: must be a mapping", id="nothing for a section"),
    pytest.param("binding: {inFlightTimeout: 0s}", 'binding.inFlightTimeout: "0s": must be greater than 0s',
        id="zero time"),
    pytest.param("binding: {workers: many}", 'binding.workers: "many": must be a whole number', id="a word for one"),
    pytest.param("gpuSharing: {nvFractions: maybe}",
        "gpuSharing.nvFractions: \"maybe\": must be 'Auto', true or false", id="a word for a switch or Auto"),
    pytest.param("gpuSharing: {enabled: 3}", "gpuSharing.enabled: 3: must be true or false",
        id="a number for a switch"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expectation"), WORDS)
def test_an_error_states_only_the_rule(text: str, expectation: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_settings(f"{HEAD}{text}")
    assert [str(fault) for fault in caught.value.errors] == [expectation]
