"""A pod of any shape gets a verdict, even where the chain in front does not check it."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bowline.plugins.gpu_request.rules import Policy, request_errors, update_errors
from bowline.plugins.gpu_request.tests.builders import CLASS, COUNT, GPU, INVENTORY, MIG, NAME

KNOWN = Policy(gpu_device_classes=frozenset({"gpu.example.com"}))
WORDS = st.sampled_from(
    [
        *("metadata", "annotations", "spec", "containers", "initContainers", "name", "restartPolicy", "resources"),
        *("limits", "requests", "claims", GPU, MIG, CLASS),
        *(COUNT, NAME, "gpu-fraction", "gpu-memory", "mps", "1", "0.5", "true"),
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | WORDS
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=4),
)
SHAPED = st.fixed_dictionaries(
    {
        "metadata": ANYTHING | st.fixed_dictionaries({"annotations": st.dictionaries(WORDS, ANYTHING, max_size=4)}),
        "spec": ANYTHING
        | st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(st.fixed_dictionaries({"resources": ANYTHING}), max_size=2) | ANYTHING,
                "initContainers": st.lists(
                    st.fixed_dictionaries({"resources": st.fixed_dictionaries({"limits": ANYTHING})}), max_size=2
                ),
                "resources": st.fixed_dictionaries({"limits": ANYTHING}),
            },
        ),
    }
)


@settings(max_examples=40)
@given(ANYTHING | SHAPED, ANYTHING | SHAPED)
def test_any_shape_gets_a_verdict_that_can_be_encoded(raw: Any, old: Any) -> None:
    for inventory in (None, INVENTORY):
        for fault in (*request_errors(raw, KNOWN, inventory), *update_errors(raw, old)):
            assert "\n" not in str(fault)
