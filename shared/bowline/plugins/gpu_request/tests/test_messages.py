"""The texts of the errors: one golden text for each rule, and every rule has one and is documented."""

from typing import Any

from bowline.framework.plugin import Inventory
from bowline.plugins.gpu_request import rule_table
from bowline.plugins.gpu_request.rules import Policy, request_errors, update_errors
from bowline.plugins.gpu_request.tests.builders import (
    CLASS,
    COUNT,
    DEFAULT,
    GPU,
    INVENTORY,
    MIG,
    NAME,
    claiming,
    container,
    pod,
)

UNLABELLED = Inventory(max_gpus_per_node=0, nodes_with_memory_label=0)
OFF = Policy(sharing=False)
KNOWN = Policy(gpu_device_classes=frozenset({"gpu.example.com"}))

GOLDEN: list[Any] = [
    ("fraction-format", pod({"gpu-fraction": "50%"}), DEFAULT, None,
     'metadata.annotations[gpu-fraction]: "50%": must be a decimal number between 0 and 1 without unit or spaces; '
     'write "0.5"'),
    ("fraction-range", pod({"gpu-fraction": "2"}), DEFAULT, None,
     'metadata.annotations[gpu-fraction]: "2": must be greater than 0 and less than 1; for whole GPUs use limits '
     "nvidia.com/gpu in a container instead, for parts of several GPUs add gpu-fraction-num-devices"),
    ("fraction-precision", pod({"gpu-fraction": "0.001"}), DEFAULT, None,
     'metadata.annotations[gpu-fraction]: "0.001": will be rounded to 0.00; write at least 0.01 and at most 0.99'),
    ("memory-format", pod({"gpu-memory": "4Gi"}), DEFAULT, None,
     'metadata.annotations[gpu-memory]: "4Gi": must be a whole number of MiB above 0, digits only; write "4096"'),
    ("memory-and-fraction", pod({"gpu-fraction": "0.5", "gpu-memory": "4096"}), DEFAULT, None,
     'metadata.annotations[gpu-memory]: "4096": cannot be combined with gpu-fraction: both give the size of the '
     "share; remove one of them"),
    ("memory-inventory", pod({"gpu-memory": "4096"}), DEFAULT, UNLABELLED,
     'metadata.annotations[gpu-memory]: "4096": no node is labelled nvidia.com/gpu.memory, so its part of a GPU is '
     "unknown; use gpu-fraction"),
    ("num-devices-alone", pod({COUNT: "2"}), DEFAULT, None,
     'metadata.annotations[gpu-fraction-num-devices]: "2": needs gpu-fraction or gpu-memory, which give the share of '
     "each device; add one, or for whole GPUs use limits nvidia.com/gpu instead"),
    ("num-devices-format", pod({"gpu-fraction": "0.5", COUNT: "0"}), DEFAULT, None,
     'metadata.annotations[gpu-fraction-num-devices]: "0": must be a whole number from 1 to 1024, digits only; for '
     'two devices write "2"'),
    ("num-devices-inventory", pod({"gpu-fraction": "0.5", COUNT: "16"}), DEFAULT, INVENTORY,
     'metadata.annotations[gpu-fraction-num-devices]: "16": is more GPUs than any node is labelled with (8); ask for '
     "fewer, or the pod waits for a larger node"),
    ("container-name", pod({"gpu-fraction": "0.5", NAME: "trainer"}, init=[container("prepare")]), DEFAULT, None,
     'metadata.annotations[gpu-fraction-container-name]: "trainer": must name a container or init container of this '
     'pod ("prepare", "main"); without the annotation the first container is taken'),
    ("container-name-unused", pod({NAME: "main"}), DEFAULT, None,
     'metadata.annotations[gpu-fraction-container-name]: "main": has no effect without gpu-fraction or gpu-memory'),
    ("mps-alone", pod({"mps": "true"}), DEFAULT, None,
     'metadata.annotations[mps]: "true": needs gpu-fraction or gpu-memory: MPS serves shares only; add one or remove '
     "this"),
    ("mps-spelling", pod({"mps": "True"}), DEFAULT, None,
     'metadata.annotations[mps]: "True": has no effect: only "true" switches MPS on'),
    ("sharing-disabled", pod({"gpu-fraction": "0.5"}), OFF, None,
     'metadata.annotations[gpu-fraction]: "0.5": GPU sharing is switched off; ask for whole GPUs with limits '
     "nvidia.com/gpu, or have gpuSharing.enabled set to true in Bowline's configuration"),
    ("share-and-whole", pod({"gpu-fraction": "0.5"}, container(limits={GPU: "1"})), DEFAULT, None,
     'metadata.annotations[gpu-fraction]: "0.5": a share cannot be combined with whole GPUs (container "main": '
     "nvidia.com/gpu 1); remove the annotation or those resources"),
    ("share-and-mig", pod({"gpu-memory": "500"}, container(limits={MIG: 1})), DEFAULT, None,
     'metadata.annotations[gpu-memory]: "500": a share cannot be combined with MIG devices (container "main": '
     "nvidia.com/mig-1g.10gb 1); remove the annotation or those resources"),
    ("share-and-node-name", pod({"gpu-fraction": "0.5"}, nodeName="n"), DEFAULT, None,
     'metadata.annotations[gpu-fraction]: "0.5": a share cannot be combined with spec.nodeName: the pod is not '
     "scheduled, so it gets no device and never starts; remove spec.nodeName, or use a node selector"),
    ("share-privileged", pod({"gpu-fraction": "0.5"}, container(securityContext={"privileged": True})), DEFAULT, None,
        'metadata.annotations[gpu-fraction]: "0.5": container "main" is privileged and so can use every GPU of its '
        "node, not only its share"),
    ("share-and-claim (claim)", pod({"gpu-fraction": "0.5"}, claiming("main", "big-gpu")), DEFAULT, None,
     'metadata.annotations[gpu-fraction]: "0.5": container "main" also uses DRA claims ("big-gpu"); if one is a GPU, '
     "it is in addition to the share"),
    ("share-and-dra (class)", pod({"gpu-fraction": "0.5"}, container(limits={CLASS: 1})), KNOWN, None,
     'metadata.annotations[gpu-fraction]: "0.5": a share cannot be combined with DRA devices of container "main" '
     '("gpu.example.com"); remove one of the two'),
    ("quantity-format", pod({}, container(limits={GPU: "one"})), DEFAULT, None,
     'spec.containers[0].resources.limits[nvidia.com/gpu]: "one": must be a whole number, such as 1'),
    ("quantity-integer (GPU)", pod({}, container(limits={GPU: "500m"})), DEFAULT, None,
     'spec.containers[0].resources.limits[nvidia.com/gpu]: "500m": must be a whole number, 0 or more; for a part of '
     "a GPU use the annotation gpu-fraction instead"),
    ("quantity-integer (MIG)", pod({}, container(limits={MIG: -1})), DEFAULT, None,
     "spec.containers[0].resources.limits[nvidia.com/mig-1g.10gb]: -1: must be a whole number, 0 or more"),
    ("request-differs", pod({}, container(limits={GPU: 2}, requests={GPU: 1})), DEFAULT, None,
     "spec.containers[0].resources.requests[nvidia.com/gpu]: 1: must be the same as the limit, 2; leave the request "
     "out and it is"),
    ("limit-missing", pod({}, container(requests={GPU: 1})), DEFAULT, None,
     "spec.containers[0].resources.limits[nvidia.com/gpu]: null: is required, because GPUs are not overcommitted; "
     "set it to the request, 1"),
    ("pod-level", pod({}, resources={"limits": {GPU: 1}}), DEFAULT, None,
     "spec.resources.limits[nvidia.com/gpu]: 1: GPUs cannot be requested at pod level; move this to the resources of "
     "the container that uses them"),
    ("whole-inventory", pod({}, container(limits={GPU: 16})), DEFAULT, INVENTORY,
     "spec.containers[0].resources.limits[nvidia.com/gpu]: 16: is more GPUs than any node is labelled with (8); ask "
     "for fewer, or the pod waits for a larger node"),
    ("whole-inventory together", pod({}, container(limits={GPU: 4}), container(limits={GPU: 5})), DEFAULT,
     INVENTORY,
     "spec.containers[1].resources.limits[nvidia.com/gpu]: 5: with the pod's other containers is 9, more GPUs than "
     "any node is labelled with (8); ask for fewer, or the pod waits for a larger node"),
    ("annotation-name", pod({"kai.scheduler/gpu-fraction": "0.5"}), DEFAULT, None,
     'metadata.annotations[kai.scheduler/gpu-fraction]: "0.5": has no effect: no component reads this annotation; '
     "did you mean gpu-fraction?"),
    ("annotation-as-label", {"metadata": {"name": "p", "labels": {"gpu-memory": "4096"}},
     "spec": {"containers": [container()]}}, DEFAULT, None,
     'metadata.labels[gpu-memory]: "4096": has no effect as a label; set the annotation gpu-memory'),
    ("annotation-in-spec", pod({}, container(env=[{"name": "A"}, {"name": "gpu-memory", "value": "4096"}])),
     DEFAULT, None,
     'spec.containers[0].env[1].name: "gpu-memory": has no effect as a variable; set the annotation gpu-memory of '
     "the pod"),
    ("annotation-in-spec as a selector", pod({}, container(), nodeSelector={"gpu-fraction": "0.5"}), DEFAULT, None,
     'spec.nodeSelector[gpu-fraction]: "0.5": selects nodes by a label, no share; set the annotation gpu-fraction of '
     "the pod"),
    ("resource-as-label", {"metadata": {"name": "p", "labels": {GPU: "2"}}, "spec": {"containers": [container()]}},
     DEFAULT, None,
     'metadata.labels[nvidia.com/gpu]: "2": has no effect as a label; set limits nvidia.com/gpu of a container'),
    ("label-as-annotation", {"metadata": {"name": "p", "annotations": {"kai.scheduler/queue": "a"}},
     "spec": {"containers": [container()]}}, DEFAULT, None,
     'metadata.annotations[kai.scheduler/queue]: "a": has no effect as an annotation; set the label '
     "kai.scheduler/queue"),
    ("resource-name", {"metadata": {"name": "p"},
     "spec": {"containers": [container(limits={"nvidia.com/gpus": "1"})]}}, DEFAULT, None,
     'spec.containers[0].resources.limits[nvidia.com/gpus]: "1": no device plugin serves this resource; did you mean '
     "nvidia.com/gpu?"),
    ("memory-size", pod({"gpu-memory": "8"}), DEFAULT, None,
     'metadata.annotations[gpu-memory]: "8": is 8 MiB, too little for a CUDA context; the unit is MiB, so 8 GiB are '
     "8192"),
    ("fraction-range (a percentage)", pod({"gpu-fraction": "50"}), DEFAULT, None,
     'metadata.annotations[gpu-fraction]: "50": must be greater than 0 and less than 1; write "0.5"'),
    ("fraction-range (nothing)", pod({"gpu-fraction": "0"}), DEFAULT, None,
     'metadata.annotations[gpu-fraction]: "0": must be greater than 0 and less than 1; for no share remove the '
     "annotation"),
    ("quantity-integer (beside a share: one error)", pod({"gpu-fraction": "0.5"}, container(limits={GPU: 0.5})),
     DEFAULT, None,
     "spec.containers[0].resources.limits[nvidia.com/gpu]: 0.5: must be a whole number, 0 or more; remove it, the "
     "annotation of the share already asks for a part"),
    ("memory-implausible", pod({"gpu-memory": "8589934592"}), DEFAULT, None,
     'metadata.annotations[gpu-memory]: "8589934592": is more MiB than any GPU has; 8 GiB are 8192'),
    ("runtime-class", pod({"gpu-fraction": "0.5"}, runtimeClassName="runc"), DEFAULT, None,
     'spec.runtimeClassName: "runc": passes no GPU to a container; leave it out, and the class for shares is set'),
    ("other-gpu", pod({"gpu-fraction": "0.5"}, container(limits={"amd.com/gpu": 1})), DEFAULT, None,
     "spec.containers[0].resources.limits[amd.com/gpu]: 1: is a device in addition to the share; remove it, or the "
     "annotation of the share"),
]  # fmt: skip


FORBIDDEN_UPDATES: list[Any] = [
    ({"gpu-fraction": "0.5"}, {"gpu-fraction": "0.6"},
     'metadata.annotations[gpu-fraction]: "0.6": is fixed when the pod is created (it was "0.5"); create a new pod '
     "with the value wanted"),
    ({}, {"mps": "true"},
     'metadata.annotations[mps]: "true": is fixed when the pod is created (there was none); create a new pod with '
     "the value wanted"),
    ({"gpu-memory": "1"}, {},
     'metadata.annotations[gpu-memory]: null: is fixed when the pod is created (it was "1"); create a new pod with '
     "the value wanted"),
]  # fmt: skip


def test_the_text_of_each_rule() -> None:
    for _, raw, policy, inventory, text in GOLDEN:
        assert [str(fault) for fault in request_errors(raw, policy, inventory)] == [text]
    for before, after, text in FORBIDDEN_UPDATES:
        assert [str(fault) for fault in update_errors(pod(after), pod(before))] == [text]


def test_a_message_names_a_bounded_number_of_containers() -> None:
    raw = pod({"gpu-fraction": "0.5"}, *(container(f"worker-{i}", limits={GPU: 1}) for i in range(300)))
    [fault] = request_errors(raw, DEFAULT)
    assert '"worker-4": ' in fault.message
    assert "and 295 more" in fault.message
    assert "worker-5" not in fault.message


def test_each_rule_has_a_golden_text() -> None:
    golden = {f"gpu_request/{rule.split()[0]}" for rule, *_ in GOLDEN} | {rule_table.IMMUTABLE.id}
    assert {rule.id for rule in rule_table.RULES} == golden
