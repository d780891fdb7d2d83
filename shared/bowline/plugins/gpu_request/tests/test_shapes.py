"""A pod of any shape gets a verdict: the chain checks the types that the rules rely on."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo, PluginConfig
from bowline.plugins.gpu_request import GpuRequest
from bowline.plugins.gpu_request.tests.builders import CLASS, COUNT, GPU, MIG, NAME

SETTINGS = Settings.model_validate({"gpuDeviceClasses": ["gpu.example.com"]})


def fail(plugin: str, point: str, error: BaseException) -> None:
    raise AssertionError(f"{plugin}.{point} raised an exception") from error


CHAIN = AdmissionChain(
    [GpuRequest(PluginConfig(), SETTINGS)], SETTINGS, on_error=fail, default_scheduler=SETTINGS.scheduler_names[0]
)
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
STRINGS = st.dictionaries(WORDS, WORDS | st.text(max_size=4), max_size=4)
RESOURCES = st.fixed_dictionaries(
    {}, optional={part: st.dictionaries(WORDS, WORDS) for part in ("limits", "requests")}
)
WELL_FORMED = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"annotations": STRINGS, "labels": st.none() | STRINGS}),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(st.fixed_dictionaries({"resources": st.none() | RESOURCES}), max_size=2)},
            optional={"initContainers": st.none(), "nodeSelector": STRINGS, "resources": RESOURCES},
        ),
    }
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


OBJECT = st.dictionaries(WORDS | st.text(max_size=3), ANYTHING, max_size=4) | SHAPED | WELL_FORMED


@settings(max_examples=80)
@given(OBJECT, OBJECT)
def test_any_shape_gets_a_verdict_that_can_be_encoded(raw: Any, old: Any) -> None:
    creation = CHAIN.admit_pod(raw, AdmissionInfo())
    update = CHAIN.validate_pod(raw, old, AdmissionInfo("UPDATE"))
    for verdict in (creation, update):
        for error in (*verdict.errors, *verdict.warnings):
            assert "\n" not in str(error)
