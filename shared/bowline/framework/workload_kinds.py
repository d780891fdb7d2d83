"""The kinds that Bowline knows: Kubernetes' own, and those of other projects that a configuration names. Data.

Groups, resources and fields are those of the projects' CRDs, and what their controllers add to pods is what the
projects' code does. The chart's table of kinds is generated from this one (``make generate``).
"""

from typing import Any, Final

from bowline.framework.templates import TemplatePath, Workload

_KAI: Final = "kai-scheduler"


def _workload(group: str, kind: str, resource: str, *templates: str | TemplatePath, **controller: Any) -> Workload:
    paths = tuple(TemplatePath.of(path) if isinstance(path, str) else path for path in templates)
    return Workload(group, kind, resource, paths, **controller)


# Always reviewed; the chart's webhook rules contain them statically.
BUILT_IN: Final = (
    _workload("apps", "Deployment", "deployments", "spec.template"),
    _workload("apps", "StatefulSet", "statefulsets", "spec.template"),
    _workload("apps", "DaemonSet", "daemonsets", "spec.template"),
    _workload("apps", "ReplicaSet", "replicasets", "spec.template"),
    _workload("", "ReplicationController", "replicationcontrollers", "spec.template"),
    _workload("batch", "Job", "jobs", "spec.template"),
    _workload("batch", "CronJob", "cronjobs", "spec.jobTemplate.spec.template"),
)
BUILT_IN_KEYS: Final = frozenset(workload.key for workload in BUILT_IN)

_RAY: Final = ("headGroupSpec.template", "workerGroupSpecs[*].template")
# KubeRay's operator gives the pods of an object with the label of a queue this scheduler, and the label.
_RAY_QUEUE: Final[dict[str, Any]] = {"queue_scheduler": _KAI}
_JOB_SET: Final = "spec.replicatedJobs[*].template.spec.template"

# One container in place of the pod's list: of a model server, and of KServe's older fields for each framework.
_MODEL_SERVERS: Final = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn", "tensorflow"),
    *("triton", "xgboost"),
)
_KSERVE: Final = dict.fromkeys(_MODEL_SERVERS, "kserve-container")
_ARGO_CONTAINERS: Final = {
    "container": "main",
    "script": "main",
    "containerSet.containers[*]": "",
    "sidecars[*]": "",
}


# Of a step or a task: a template within it, and one of another object.
_ELSEWHERE: Final = ("inline", "templateRef")


def _component(name: str) -> TemplatePath:
    return TemplatePath.of_spec(f"spec.{name}", f"spec.{name}", _KSERVE)


def _argo(below: str) -> TemplatePath:
    return TemplatePath.of_spec(f"{below}.templates[*]", f"{below}.templates[*].metadata", _ARGO_CONTAINERS)


def _argo_fields(below: str) -> dict[str, Any]:
    """Return what Argo adds to the pods of a workflow, and what of it is not read."""
    unread = (
        *("templateDefaults", "podSpecPatch", "templates[*].podSpecPatch", "templates[*].resource.manifest"),
        *("workflowTemplateRef", "podResources", "templates[*].podResources", "executorPlugins"),
        *(f"templates[*].{part}.{field}" for part in ("steps[*][*]", "dag.tasks[*]") for field in _ELSEWHERE),
    )
    return {
        "scheduler_field": f"{below}.schedulerName",
        "pod_metadata": f"{below}.podMetadata",
        "unread": tuple((f"{below}.{path}", f"{below}.{path}") for path in unread),
    }


def _spark(below: str) -> tuple[TemplatePath, ...]:
    """Return the pods of driver and executors: templates, and fields that the operator adds to them."""
    parts = [f"{below}.{part}" for part in ("driver", "executor")]
    return (
        *(TemplatePath.of(f"{part}.template") for part in parts),
        *(TemplatePath.of_spec(part, part, {"sidecars[*]": ""}) for part in parts),
    )


def _spark_fields(below: str) -> dict[str, Any]:
    unread = tuple((f"{below}.{part}.gpu", f"{below}.{part}.gpu") for part in ("driver", "executor"))
    return {"scheduler_field": f"{below}.batchScheduler", "is_partial": True, "unread": unread}


_RUNTIME: Final = (TemplatePath.of_spec("spec", "spec"), TemplatePath.of_spec("spec.workerSpec", "spec.workerSpec"))
_LLM: Final = (
    TemplatePath.of_spec("spec.template", "spec"),
    TemplatePath.of_spec("spec.worker", "spec"),
    TemplatePath.of_spec("spec.prefill.template", "spec.prefill"),
    TemplatePath.of_spec("spec.prefill.worker", "spec.prefill"),
    TemplatePath.of_spec("spec.router.scheduler.template"),
    TemplatePath.of_spec("spec.router.scheduler.tokenizer.template"),
)

# Reviewed if the configuration names them.
READY: Final = (
    _workload("jobset.x-k8s.io", "JobSet", "jobsets", _JOB_SET),
    _workload(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        "leaderworkersets",
        "spec.leaderWorkerTemplate.leaderTemplate",
        "spec.leaderWorkerTemplate.workerTemplate",
    ),
    _workload("ray.io", "RayCluster", "rayclusters", *(f"spec.{path}" for path in _RAY), **_RAY_QUEUE),
    _workload(
        "ray.io",
        "RayJob",
        "rayjobs",
        *(f"spec.rayClusterSpec.{path}" for path in _RAY),
        "spec.submitterPodTemplate",
        **_RAY_QUEUE,
    ),
    _workload(
        "ray.io", "RayService", "rayservices", *(f"spec.rayClusterConfig.{path}" for path in _RAY), **_RAY_QUEUE
    ),
    _workload("kubeflow.org", "PyTorchJob", "pytorchjobs", "spec.pytorchReplicaSpecs.*.template"),
    _workload("kubeflow.org", "TFJob", "tfjobs", "spec.tfReplicaSpecs.*.template"),
    _workload("kubeflow.org", "MPIJob", "mpijobs", "spec.mpiReplicaSpecs.*.template"),
    _workload("kubeflow.org", "XGBoostJob", "xgboostjobs", "spec.xgbReplicaSpecs.*.template"),
    _workload("kubeflow.org", "PaddleJob", "paddlejobs", "spec.paddleReplicaSpecs.*.template"),
    _workload("kubeflow.org", "JAXJob", "jaxjobs", "spec.jaxReplicaSpecs.*.template"),
    # A TrainJob changes the templates of a runtime: by patches, before version 2.2 by overrides.
    _workload(
        "trainer.kubeflow.org",
        "TrainJob",
        "trainjobs",
        f"spec.runtimePatches[*].trainingRuntimeSpec.template.{_JOB_SET}",
        "spec.podTemplateOverrides[*]",
        is_partial=True,
        unread=(
            ("spec.trainer.resourcesPerNode", "spec.trainer.resourcesPerNode"),
            ("spec.runtimeRef", "the templates of spec.runtimeRef"),
        ),
    ),
    _workload("trainer.kubeflow.org", "TrainingRuntime", "trainingruntimes", f"spec.template.{_JOB_SET}"),
    _workload(
        "trainer.kubeflow.org", "ClusterTrainingRuntime", "clustertrainingruntimes", f"spec.template.{_JOB_SET}"
    ),
    _workload("batch.volcano.sh", "Job", "jobs", "spec.tasks[*].template", scheduler_field="spec.schedulerName"),
    _workload(
        "grove.io",
        "PodCliqueSet",
        "podcliquesets",
        TemplatePath.of_spec("spec.template.cliques[*].spec.podSpec", "spec.template.cliques[*]"),
        queue_scheduler=_KAI,
        unread=(
            ("spec.template.resourceSharing", "spec.template.resourceSharing"),
            ("spec.template.cliques[*].resourceSharing", "spec.template.cliques[*].resourceSharing"),
        ),
    ),
    _workload(
        "serving.kserve.io",
        "InferenceService",
        "inferenceservices",
        *map(_component, ("predictor", "transformer", "explainer")),
        # The further pods of a predictor on several nodes, and the predictors beside it.
        TemplatePath.of_spec("spec.predictor.workerSpec", "spec.predictor"),
        _component("canary[*].predictor"),
        TemplatePath.of_spec("spec.canary[*].predictor.workerSpec", "spec.canary[*].predictor"),
        pod_metadata="metadata",
        is_partial=True,
        unread=tuple((f"spec.predictor.{server}", "the containers of its runtime") for server in _MODEL_SERVERS),
    ),
    _workload("serving.kserve.io", "ServingRuntime", "servingruntimes", *_RUNTIME, is_partial=True),
    _workload("serving.kserve.io", "ClusterServingRuntime", "clusterservingruntimes", *_RUNTIME, is_partial=True),
    _workload(
        "serving.kserve.io",
        "LLMInferenceService",
        "llminferenceservices",
        *_LLM,
        is_partial=True,
        unread=(
            ("spec.baseRefs", "the templates of spec.baseRefs"),
            ("spec", "the configurations that KServe merges"),
        ),
    ),
    _workload(
        "serving.kserve.io",
        "LLMInferenceServiceConfig",
        "llminferenceserviceconfigs",
        *_LLM,
        is_partial=True,
        unread=(("spec", "the services that use it"),),
    ),
    _workload("argoproj.io", "Workflow", "workflows", _argo("spec"), **_argo_fields("spec")),
    _workload("argoproj.io", "WorkflowTemplate", "workflowtemplates", _argo("spec"), **_argo_fields("spec")),
    _workload(
        "argoproj.io", "ClusterWorkflowTemplate", "clusterworkflowtemplates", _argo("spec"), **_argo_fields("spec")
    ),
    _workload(
        "argoproj.io",
        "CronWorkflow",
        "cronworkflows",
        _argo("spec.workflowSpec"),
        **_argo_fields("spec.workflowSpec"),
    ),
    _workload(
        "argoproj.io", "Rollout", "rollouts", "spec.template", unread=(("spec.workloadRef", "spec.workloadRef"),)
    ),
    _workload("keda.sh", "ScaledJob", "scaledjobs", "spec.jobTargetRef.template"),
    _workload("serving.knative.dev", "Service", "services", "spec.template"),
    _workload(
        "disaggregatedset.x-k8s.io",
        "DisaggregatedSet",
        "disaggregatedsets",
        "spec.roles[*].spec.leaderWorkerTemplate.leaderTemplate",
        "spec.roles[*].spec.leaderWorkerTemplate.workerTemplate",
    ),
    _workload("orchestration.aibrix.ai", "StormService", "stormservices", "spec.template.spec.roles[*].template"),
    # Of v1beta1 components, of v1alpha1 services.
    _workload(
        "nvidia.com",
        "DynamoGraphDeployment",
        "dynamographdeployments",
        "spec.components[*].podTemplate",
        TemplatePath.of_spec(
            "spec.services.*.extraPodSpec", "spec.services.*.extraPodMetadata", {"mainContainer": "main"}
        ),
        is_partial=True,
        unread=(("spec.services.*.resources", "spec.services.*.resources"),),
    ),
    _workload(
        "apps.nvidia.com",
        "NIMService",
        "nimservices",
        TemplatePath.of_spec("spec", "spec", resources=("resources",)),
        is_partial=True,
        unread=(("spec.draResources", "spec.draResources"),),
    ),
    _workload(
        "apps.nvidia.com",
        "NIMPipeline",
        "nimpipelines",
        TemplatePath.of_spec("spec.services[*].spec", "spec.services[*].spec", resources=("resources",)),
        is_partial=True,
    ),
    _workload(
        "sparkoperator.k8s.io", "SparkApplication", "sparkapplications", *_spark("spec"), **_spark_fields("spec")
    ),
    _workload(
        "sparkoperator.k8s.io",
        "ScheduledSparkApplication",
        "scheduledsparkapplications",
        *_spark("spec.template"),
        **_spark_fields("spec.template"),
    ),
    # Its controller copies the annotations of the notebook to the pod.
    _workload(
        "kubeflow.org", "Notebook", "notebooks", TemplatePath.of_spec("spec.template.spec"), pod_metadata="metadata"
    ),
)
