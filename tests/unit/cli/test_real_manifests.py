"""The verdicts on public manifests of other projects: those in ``BOWLINE_MANIFESTS``, or beside the checkout.

The manifests are not part of this repository. Each file has the verdicts of its reviewable objects, and the rules of
what is reported: anything else would be a false denial or a false warning.
"""

import os
from pathlib import Path

import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS
from bowline_cli.main import main
from bowline_cli.manifests import UnreadableError
from bowline_cli.schema import open_schema
from bowline_cli.verdicts import review_manifest, with_ready_kinds
from tests.manifest_files import read_manifests

CHECKOUT = Path(__file__).resolve().parents[3]


def folder_of_manifests() -> Path:
    """Return the folder that the environment names, else the nearest ``shared/manifests`` beside the checkout."""
    named = os.environ.get("BOWLINE_MANIFESTS")
    folders = (parent / "shared" / "manifests" for parent in CHECKOUT.parents)
    return Path(named) if named else next(filter(Path.is_dir, folders), Path("absent"))


FOLDER = folder_of_manifests()

SCHEMA = open_schema()
ALLOWED, SCOPE = "allowed", "out of scope"
UNREADABLE = "unreadable"
VERDICTS = {
    **dict.fromkeys(("01-gpu-sharing", "02-gpu-memory", "03-gpu-sharing-init-container"), ALLOWED),
    **dict.fromkeys(("04-gpu-sharing-non-default-container", "05-gpu-sharing-with-mps", "06-gpu-pod"), ALLOWED),
    "07-ray-job": ALLOWED,
    "08-multi-topology-jobs": "allowed allowed",
    "09-3-new-workloads": "allowed allowed",
    "10-ray-cluster.kai-gpu-sharing": ALLOWED,
    **dict.fromkeys(("11-ray-service.llm-serve", "12-ray-cluster.verl", "13-ray-job.batch-inference"), SCOPE),
    "15-gpu-deployment": SCOPE,
    "16-production-stack_v1alpha1_vllmruntime": "",
    "17-deployment-vllm-multi": UNREADABLE,
    "18-values": UNREADABLE,
    **dict.fromkeys(("19-lws", "20-lws", "21-lws", "22-resnet", "23-sample-pytorchjob", "24-sample-mpijob"), SCOPE),
    "25-sample-leaderworkerset-tas": "denied",
    "26-sample-hami": SCOPE,
    **dict.fromkeys(("27-llama3_2_1B", "28-lammps-train-gpus", "29-mindspore-gpu", "30-deployment"), SCOPE),
    **dict.fromkeys(("31-default_use", "32-vllm_cross_vgpu", "33-mig-1g-12gb", "34-gpu-test7"), SCOPE),
    "35-nvbandwidth-test-job": SCOPE,
    "36-nvidia_v1alpha1_gpucluster": "",
    **dict.fromkeys(("37-gpu", "38-llm-inference-service-qwen2-7b-gpu"), SCOPE),
    "39-mnnvl-gpu-bare": ALLOWED,
    "40-workflow": SCOPE,
    "41-jobset-controller-manager-istio": "partial",
}
ABSENT = "the manifests are not here: no BOWLINE_MANIFESTS, and no shared/manifests beside the checkout"
FILES = sorted(FOLDER.glob("*.yaml"))


def chain() -> AdmissionChain:
    settings = with_ready_kinds(Settings())
    return AdmissionChain(Registry(BUILTINS, discover=dict).build(settings), settings)


@pytest.mark.skipif(not FILES, reason=ABSENT)
def test_every_manifest_has_its_verdict_and_no_finding_but_one() -> None:
    verdicts: dict[str, str] = {}
    findings: dict[str, list[str]] = {}
    for file in FILES:
        try:
            results = [review_manifest(chain(), manifest, SCHEMA) for manifest in read_manifests(str(file))]
        except UnreadableError:
            verdicts[file.stem] = UNREADABLE
            continue
        verdicts[file.stem] = " ".join(r.verdict for r in results if r.verdict.may_have_pods)
        for result in results:
            for finding in (*result.review.errors, *result.review.warnings):
                findings.setdefault(file.stem, []).append(finding.rule.id)
    assert verdicts == VERDICTS
    assert findings == {"25-sample-leaderworkerset-tas": ["kubernetes/limit"]}


@pytest.mark.skipif(not FILES, reason=ABSENT)
def test_the_one_without_limits_is_denied_offline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(FOLDER / "25-sample-leaderworkerset-tas.yaml")]) == 1
    assert "resources.limits[nvidia.com/gpu]: null: is required" in capsys.readouterr().out
