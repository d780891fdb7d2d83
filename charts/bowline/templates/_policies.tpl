{{/*
What the API server denies by itself, by ValidatingAdmissionPolicies (decision 145). Every expression is total: optional
fields are read after has(), so that evaluation cannot fail. Each policy selects requests by account, so that other
accounts cost one comparison.
*/}}

{{/* Enforce, Warn or Off. YAML reads an Off without quotes as false. */}}
{{- define "bowline.mode" -}}
{{- $mode := .Values.admission.mode | default "Off" -}}
{{- $configured := dig "admission" "mode" $mode .Values.config | default "Off" -}}
{{- if ne $configured $mode -}}
{{- fail (printf "config.admission.mode is %s and admission.mode is %s: set admission.mode alone, the configuration gets it from there" $configured $mode) -}}
{{- end -}}
{{- $mode -}}
{{- end }}

{{/* Whether hooks and policies exist: "true" or nothing. Mode Off renders none. */}}
{{- define "bowline.admission" -}}
{{- if ne (include "bowline.mode" .) "Off" }}true{{ end }}
{{- end }}

{{/* What follows from a violation of a policy on users' objects. */}}
{{- define "bowline.policyActions" -}}
{{- if eq (include "bowline.mode" .) "Warn" }}[Warn, Audit]{{ else }}[Deny]{{ end }}
{{- end }}

{{/* A failurePolicy of a hook: the given one, but never Fail in mode Warn. Takes dict "root" and "policy". */}}
{{- define "bowline.failurePolicy" -}}
{{- if eq (include "bowline.mode" .root) "Warn" }}Ignore{{ else }}{{ .policy }}{{ end }}
{{- end }}

{{- define "bowline.reconciler.username" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "bowline.reconciler.account" . }}
{{- end }}

{{/* The users of the agents, a JSON array. */}}
{{- define "bowline.agent.usernames" -}}
{{- $users := list }}
{{- range include "bowline.reservationAccounts" . | fromJsonArray }}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" (include "bowline.reservationNamespace" $) .) }}
{{- end }}
{{- toJson $users }}
{{- end }}

{{/* Metadata of a policy or of its binding. Takes dict "root" and "name". */}}
{{- define "bowline.policy.metadata" -}}
name: {{ include "bowline.fullname" .root }}-{{ .name }}
labels: {{- include "bowline.labels" .root | nindent 2 }}
{{- end }}

{{/* A policy's binding. Takes dict "root", "name" and "actions". */}}
{{- define "bowline.policy.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{- include "bowline.policy.metadata" . | nindent 2 }}
spec:
  policyName: {{ include "bowline.fullname" .root }}-{{ .name }}
  validationActions: {{ .actions }}
{{- end }}

{{/*
Variables NAME, NAMEBefore and NAMEChanged of a map in the metadata. Takes dict "field" (labels or annotations) and "limit".
The owner of an object chooses the size of its maps, so their entries are compared only up to the limit. Above it equal
maps have no change, and others have the one change '*'.
*/}}
{{- define "bowline.policy.changes" -}}
- name: {{ .field }}
  expression: 'object != null && has(object.metadata.{{ .field }}) ? object.metadata.{{ .field }} : {}'
- name: {{ .field }}Before
  expression: 'oldObject != null && has(oldObject.metadata.{{ .field }}) ? oldObject.metadata.{{ .field }} : {}'
- name: {{ .field }}Changed
  expression: >-
    variables.{{ .field }} == variables.{{ .field }}Before ? []
    : size(variables.{{ .field }}) > {{ .limit }} || size(variables.{{ .field }}Before) > {{ .limit }} ? ['*']
    : variables.{{ .field }}.filter(k, !(k in variables.{{ .field }}Before) || variables.{{ .field }}[k] != variables.{{ .field }}Before[k])
    + variables.{{ .field }}Before.filter(k, !(k in variables.{{ .field }}))
{{- end }}

{{/*
Whether a write changes an entry of a map of the metadata that is guarded, or one of more entries than are compared. Takes
dict "field", "limit" and "guarded": CEL about a key k.
*/}}
{{- define "bowline.policy.touches" -}}
{{- $now := printf "(object != null && has(object.metadata.%s) ? object.metadata.%s : {})" .field .field -}}
{{- $before := replace "object" "oldObject" $now -}}
{{- $guarded := .guarded | replace "\n" " " -}}
({{ $now }} != {{ $before }} && (size({{ $now }}) > {{ .limit }} || size({{ $before }}) > {{ .limit }}
{{- printf " || %s.exists(k, (%s) && !(k in %s && %s[k] == %s[k]))" $now $guarded $before $before $now }}
{{- printf " || %s.exists(k, (%s) && !(k in %s))))" $before $guarded $now }}
{{- end }}

{{/* Labels and annotations of what Bowline's own accounts write; the limit is above the one for users' pods. */}}
{{- define "bowline.policy.ownChanges" -}}
{{ include "bowline.policy.changes" (dict "field" "labels" "limit" 512) }}
{{ include "bowline.policy.changes" (dict "field" "annotations" "limit" 512) }}
{{- end }}

{{/* Whether the label k records which pod shares which device. Generated. */}}
{{- define "bowline.cel.sharingLabel" -}}
{{ (.Files.Get "files/device-policy.yaml" | fromYaml).labels }}
{{- end }}

{{/*
Whether the annotation k gives a container devices, in a namespace where only Bowline may write it. Generated. NVIDIA's GPU
operator in NRI mode gives its own pods devices by such annotations.
*/}}
{{- define "bowline.cel.deviceAnnotation" -}}
(!(request.namespace in {{ .Values.policy.trusted.namespaces | default list | toJson }}) && {{ (.Files.Get "files/device-policy.yaml" | fromYaml).annotations }})
{{- end }}

{{/* The variables device and deviceBefore: what a reservation pod's annotation names. */}}
{{- define "bowline.policy.device" -}}
{{- range $variable, $object := dict "device" "object" "deviceBefore" "oldObject" }}
- name: {{ $variable }}
  expression: >-
    {{ $object }} != null && has({{ $object }}.metadata.annotations) && 'run.ai/reserve_for_gpu_index' in {{ $object }}.metadata.annotations
    ? {{ $object }}.metadata.annotations['run.ai/reserve_for_gpu_index'] : ''
{{- end }}
{{- end }}

{{/*
Whether schedulers, or plugins after the bind, read the annotation k of a bound pod as a fact about its devices. KAI-Scheduler
replaces a pod's request of GPUs by what annotations of MIG devices say.
*/}}
{{- define "bowline.cel.factAnnotation" -}}
{{ (.Files.Get "files/device-policy.yaml" | fromYaml).facts }}
|| k in {{ include "bowline.access.list" (dict "root" . "field" "bindingAnnotations") }}
{{- end }}

{{/* The pattern of the names of a share's ConfigMaps: NAME-0, NAME-i0, each also with -evar. */}}
{{- define "bowline.cel.shareMapName" -}}
'-i?[0-9]+(-evar)?$'
{{- end }}

{{/* Whether finalizers and owner references are as they were. */}}
{{- define "bowline.cel.sameOwnersAndFinalizers" -}}
(has(object.metadata.ownerReferences) ? object.metadata.ownerReferences : [])
== (has(oldObject.metadata.ownerReferences) ? oldObject.metadata.ownerReferences : [])
&& (has(object.metadata.finalizers) ? object.metadata.finalizers : [])
== (has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : [])
{{- end }}

{{/* Whether a field of the object (path in words separated by dots, without object) is as it was. Takes the path. */}}
{{- define "bowline.cel.unchanged" -}}
has(object.{{ . }}) == has(oldObject.{{ . }}) && (!has(object.{{ . }}) || object.{{ . }} == oldObject.{{ . }})
{{- end }}

{{/* A value as CEL. The API server permits no literal with values of several types, unless their types are dynamic. */}}
{{- define "bowline.cel.value" -}}
{{- if kindIs "map" . -}}
{ {{- range $i, $key := keys . | sortAlpha }}{{ if $i }}, {{ end }}{{ toJson $key }}: dyn({{ include "bowline.cel.value" (get $ $key) }}){{ end -}} }
{{- else if kindIs "slice" . -}}
[{{ range $i, $item := . }}{{ if $i }}, {{ end }}dyn({{ include "bowline.cel.value" $item }}){{ end }}]
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{/* An argument of plugin gpu_sharing that is a map, as CEL; "null" if it is none. Takes dict "root" and "name". */}}
{{- define "bowline.sharingObject" -}}
{{- $value := "null" }}
{{- $name := .name }}
{{- range include "bowline.plugins" .root | fromJsonArray }}
{{- if and (eq .name "gpu_sharing") (get (.args | default dict) $name) }}{{ $value = include "bowline.cel.value" (get .args $name) }}{{ end }}
{{- end }}
{{- $value }}
{{- end }}

{{/*
The agent's images: those of the configured repository, whatever the tag or digest, because an upgrade replaces the policy
before the reconciler; and what policy.agentImages lists. A JSON array, which is also CEL.
*/}}
{{- define "bowline.policy.agentImages" -}}
{{- $image := dig "gpuSharing" "agentImage" "" .Values.config | default (include "bowline.image" .) }}
{{- prepend (.Values.policy.agentImages | default list) (regexReplaceAll ":[^:/]*$" ($image | splitList "@" | first) "") | uniq | toJson }}
{{- end }}

{{/*
Validations of a new reservation pod: the whole pod is compared, so that a stolen token runs nothing but the agent. What API
servers, admission plugins and mutating webhooks add without giving the pod more rights is accepted.
*/}}
{{- define "bowline.policy.reservationPod" -}}
{{- $isCreate := "request.operation != 'CREATE' || " -}}
{{- $spec := list "containers" "nodeName" "serviceAccountName" "serviceAccount" "automountServiceAccountToken" "tolerations" "restartPolicy" "dnsPolicy" "dnsConfig" "terminationGracePeriodSeconds" "activeDeadlineSeconds" "securityContext" "schedulerName" "enableServiceLinks" "preemptionPolicy" "priority" "priorityClassName" "runtimeClassName" "overhead" "imagePullSecrets" "volumes" "nodeSelector" "affinity" "topologySpreadConstraints" "os" "hostUsers" }}
{{- $container := list "name" "image" "imagePullPolicy" "command" "args" "env" "resources" "ports" "livenessProbe" "readinessProbe" "terminationMessagePath" "terminationMessagePolicy" "securityContext" "volumeMounts" }}
{{- $token := list "serviceAccountToken" "configMap" "downwardAPI" }}
{{- $podContext := include "bowline.sharingObject" (dict "root" . "name" "reservationPodSecurityContext") }}
{{- $containerContext := include "bowline.sharingObject" (dict "root" . "name" "reservationContainerSecurityContext") }}
{{- /* What an agent may have at most, also by a LimitRange, or as it is configured. */}}
{{- $sizes := list "{'cpu': '4', 'memory': '8Gi', 'ephemeral-storage': '16Gi'}" }}
{{- range list "reservationRequests" "reservationLimits" }}
{{- $configured := include "bowline.sharingObject" (dict "root" $ "name" .) }}
{{- if ne $configured "null" }}{{ $sizes = append $sizes $configured }}{{ end }}
{{- end }}
{{- $runtimeClass := include "bowline.sharingArgument" (dict "root" . "name" "reservationRuntimeClassName" "default" "") }}
{{- $priorityClass := include "bowline.sharingArgument" (dict "root" . "name" "reservationPriorityClassName" "default" "") }}
- expression: >-
    {{ $isCreate }}object.spec.all(k, k in {{ toJson $spec }})
  messageExpression: >-
    'the reconciler creates only reservation pods, and they have no ' + object.spec.filter(k, !(k in {{ toJson $spec }})).map(k, 'spec.' + k).join(', ')
  message: the reconciler creates only reservation pods, and they have no such field
  reason: Forbidden
- expression: >-
    {{ $isCreate }}(size(object.spec.containers) == 1 && object.spec.containers[0].name == 'resource-reservation'
    && object.spec.containers[0].all(k, k in {{ toJson $container }})
    && has(object.spec.containers[0].command) && object.spec.containers[0].command == ['python', '-m', 'bowline.plugins.gpu_sharing.agent']
    && has(object.spec.containers[0].args) && object.spec.containers[0].args.all(a, a in ['--fake', '--listen=:8080'])
    && (!has(object.spec.containers[0].env) || object.spec.containers[0].env.all(e, e.name in ['POD_NAME', 'POD_NAMESPACE']
    && has(e.valueFrom) && has(e.valueFrom.fieldRef)))
    && (!has(object.spec.containers[0].ports) || object.spec.containers[0].ports.all(p, !has(p.hostPort) || p.hostPort == 0))
    {{- range list "livenessProbe" "readinessProbe" }}
    && (!has(object.spec.containers[0].{{ . }}) || (has(object.spec.containers[0].{{ . }}.httpGet)
    && object.spec.containers[0].{{ . }}.httpGet.all(k, k in ['path', 'port', 'scheme'])
    && string(object.spec.containers[0].{{ . }}.httpGet.port) in ['health', '8080']))
    {{- end }}
    && (!has(object.spec.containers[0].resources) || !has(object.spec.containers[0].resources.claims)))
  message: >-
    the reconciler creates only reservation pods, whose only container runs the agent's command, with probes of the pod itself
  reason: Forbidden
{{- range $field := list "limits" "requests" }}
{{- $resources := printf "object.spec.containers[0].resources.%s" $field }}
- expression: >-
    {{ $isCreate }}!has(object.spec.containers[0].resources) || !has({{ $resources }}) || {{ $resources }}.all(r,
    r == 'nvidia.com/gpu' ? string({{ $resources }}[r]) == '1' : (
    {{- range $index, $size := $sizes }}
    {{ if $index }}|| {{ end }}(r in {{ $size }} && quantity(string({{ $resources }}[r])).compareTo(quantity(string({{ $size }}[r]))) <= 0)
    {{- end }}))
  message: >-
    the reconciler creates only reservation pods, with one nvidia.com/gpu and no other {{ $field }} than the configured ones or 4 cpu,
    8Gi memory and 16Gi ephemeral-storage
  reason: Forbidden
{{- end }}
- expression: >-
    {{ $isCreate }}{{ include "bowline.policy.agentImages" . }}.exists(p, object.spec.containers[0].image.startsWith(p)
    {{- /* With a slash after it, what follows a colon is the port of a registry. */}}
    && (p.endsWith('/') || object.spec.containers[0].image.substring(size(p)).matches('^([:@][^/]*)?$')))
  messageExpression: >-
    'the reconciler creates only reservation pods, and the image ' + object.spec.containers[0].image + ' is none of the agent: '
    + {{ include "bowline.policy.agentImages" . }}.join(', ') + ' (with any tag or digest); list it in policy.agentImages if the cluster rewrites images'
  message: the reconciler creates only reservation pods, with the agent's image
  reason: Forbidden
- expression: {{ $isCreate }}!has(object.spec.runtimeClassName) || object.spec.runtimeClassName == {{ squote $runtimeClass }}
  message: the reconciler creates only reservation pods, with the configured runtime class
  reason: Forbidden
# Keys are what runtimes, network plugins and identity webhooks read, so only known ones are allowed: the reconciler's own, those
# of the API server's admission plugins and of OpenShift, and what the cluster's own webhooks add (policy.reservationKeys).
{{- $keys := .Values.policy.reservationKeys | default list }}
{{- $annotations := concat (list "nvidia.com/container.resource-reservation.gpu-compute.mode" "karpenter.sh/do-not-disrupt" "bowline.dev/expected-devices" "bowline.dev/last-joined" "kubernetes.io/limit-ranger" "kubernetes.io/psp" "openshift.io/scc" "openshift.io/required-scc" "security.openshift.io/validated-scc-subject-type" "seccomp.security.alpha.kubernetes.io/pod") $keys }}
{{- $labels := concat (list "app" "runai-gpu-group" "topology.kubernetes.io/zone" "topology.kubernetes.io/region") $keys }}
{{- range list (dict "field" "annotations" "keys" $annotations) (dict "field" "labels" "keys" $labels) }}
- expression: {{ $isCreate }}variables.{{ .field }}Changed.all(k, k in {{ toJson .keys }})
  messageExpression: >-
    'the reconciler creates only reservation pods, with known {{ .field }}; not known: ' + variables.{{ .field }}Changed.filter(k, !(k in {{ toJson .keys }})).join(', ')
    + '; list what the webhooks of this cluster add in policy.reservationKeys'
  message: the reconciler creates only reservation pods, with known {{ .field }}
  reason: Forbidden
{{- end }}
- expression: >-
    {{ $isCreate }}(!has(object.metadata.ownerReferences) || (size(object.metadata.ownerReferences) == 1
    && object.metadata.ownerReferences.all(o, o.apiVersion == 'v1' && o.kind == 'Node' && has(object.spec.nodeName) && o.name == object.spec.nodeName)))
    && !has(object.metadata.finalizers)
  message: the reconciler creates only reservation pods, without finalizers and other owners than their node
  reason: Forbidden
- expression: {{ $isCreate }}!has(object.spec.dnsConfig) || object.spec.dnsConfig.all(k, k == 'options')
  message: the reconciler creates only reservation pods, with the cluster's name servers
  reason: Forbidden
# The token that the API server mounts is the only volume.
- expression: >-
    {{ $isCreate }}!has(object.spec.volumes) || object.spec.volumes.all(v, has(v.projected) && v.projected.sources.all(s,
    s.all(k, k in {{ toJson $token }}) && (!has(s.serviceAccountToken) || !has(s.serviceAccountToken.audience))
    && (!has(s.configMap) || s.configMap.name in ['kube-root-ca.crt', 'openshift-service-ca.crt'])))
  message: the reconciler creates only reservation pods, and their only volume is the token of their ServiceAccount
  reason: Forbidden
- expression: >-
    {{ $isCreate }}((!has(object.spec.priority) || object.spec.priority <= 1000000000)
    {{- with $priorityClass }} && (!has(object.spec.priorityClassName) || object.spec.priorityClassName == {{ . | squote }}){{ end }})
  message: the reconciler creates only reservation pods, with the configured priority class and never one of the system's
  reason: Forbidden
{{- /* The configured context, or one that gives no more than the restricted Pod Security Standard does. */}}
- expression: >-
    {{ $isCreate }}{{ include "bowline.cel.restrictedContext" (dict "path" "object.spec" "configured" $podContext) | nindent 4 | trim }}
    && {{ include "bowline.cel.restrictedContext" (dict "path" "object.spec.containers[0]" "configured" $containerContext) | nindent 4 | trim }}
  message: the reconciler creates only reservation pods, with the configured security context or a restricted one
  reason: Forbidden
{{- end }}

{{/* Whether a security context is the configured one or adds no rights. Takes dict "path" of its owner and "configured". */}}
{{- define "bowline.cel.restrictedContext" -}}
{{- $context := printf "%s.securityContext" .path }}
(!has({{ $context }}){{ if ne .configured "null" }} || dyn({{ $context }}) == dyn({{ .configured }}){{ end }}
|| ({{ $context }}.all(k, k in ['runAsNonRoot', 'runAsUser', 'runAsGroup', 'fsGroup', 'fsGroupChangePolicy', 'supplementalGroups', 'supplementalGroupsPolicy', 'seccompProfile', 'seLinuxOptions', 'allowPrivilegeEscalation', 'privileged', 'capabilities', 'readOnlyRootFilesystem'])
{{- range list "allowPrivilegeEscalation" "privileged" }}
&& (!has({{ $context }}.{{ . }}) || !{{ $context }}.{{ . }})
{{- end }}
{{- range list "runAsUser" "runAsGroup" "fsGroup" }}
&& (!has({{ $context }}.{{ . }}) || {{ $context }}.{{ . }} != 0)
{{- end }}
&& (!has({{ $context }}.supplementalGroups) || {{ $context }}.supplementalGroups.all(g, g != 0))
&& (!has({{ $context }}.runAsNonRoot) || {{ $context }}.runAsNonRoot)
&& (!has({{ $context }}.capabilities) || !has({{ $context }}.capabilities.add) || size({{ $context }}.capabilities.add) == 0)
&& (!has({{ $context }}.seccompProfile) || {{ $context }}.seccompProfile.type == 'RuntimeDefault')
&& (!has({{ $context }}.seLinuxOptions) || {{ $context }}.seLinuxOptions.all(k, k == 'level'))))
{{- end }}
