"""Each example manifest gets the verdict that it states.

The valid ones run in tests/examples/test_examples_run_live.py.
"""

import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS
from bowline_cli.verdicts import review_manifest, with_ready_kinds
from tests.examples.manifests import Example, examples, read_manifests


@pytest.mark.parametrize("example", [*examples("good"), *examples("bad")])
def test_lint_gives_the_stated_verdict(example: Example) -> None:
    settings = with_ready_kinds(Settings())
    chain = AdmissionChain(Registry(BUILTINS, discover=dict).build(settings), settings)
    results = [review_manifest(chain, manifest) for manifest in read_manifests(str(example.path))]
    errors = tuple(fault.rule.id for result in results for fault in result.review.errors)
    warnings = tuple(fault.rule.id for result in results for fault in result.review.warnings)
    assert (errors, warnings) == (example.errors, example.warnings)
