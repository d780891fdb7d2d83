{{/*
Conditions that the API server evaluates before it calls a webhook: each saves a call, and with failurePolicy Fail also
a denial while no replica is available. Plain CEL without optionals, total by has(), so that no object makes one fail.
*/}}


{{/* Whether the pod (or pod template) at the path . is of a listed scheduler. Takes dict "path" and "root". */}}
{{- define "bowline.cel.ours" -}}
{{- include "bowline.cel.specOfOurs" (dict "spec" (printf "%s.spec" .path) "root" .root) -}}
{{- end }}

{{/* The same of a pod's spec. Takes dict "spec", "root", and "workload" where its kind sets a scheduler. */}}
{{- define "bowline.cel.specOfOurs" -}}
{{- $names := .root.Values.config.schedulerNames -}}
{{- $workload := .workload | default dict -}}
{{- $default := "'default-scheduler'" -}}
{{- with $workload.schedulerField -}}
{{- $default = include "bowline.cel.field" (dict "of" "object" "path" . "default" $default) -}}
{{- end -}}
{{- with $workload.queueScheduler -}}
{{- $default = printf "(has(object.metadata.labels) && 'kai.scheduler/queue' in object.metadata.labels ? '%s' : %s)" . $default -}}
{{- end -}}
{{- if has "*" $names -}}
true
{{- else -}}
(has({{ .spec }}.schedulerName) ? {{ .spec }}.schedulerName : {{ $default }}) in {{ toJson $names }}
{{- end -}}
{{- end }}

{{/* The value of a field, or a default. Takes dict "of" (object, oldObject), "path" (spec.x.y) and "default". */}}
{{- define "bowline.cel.field" -}}
({{ include "bowline.cel.has" (dict "at" .of "steps" (splitList "." .path)) }} ? {{ .of }}.{{ .path }} : {{ .default }})
{{- end }}

{{/* Whether the fields below "at" exist. Takes dict "at" and "steps". */}}
{{- define "bowline.cel.has" -}}
{{- $at := .at -}}
{{- $each := list -}}
{{- range .steps -}}
{{- $at = printf "%s.%s" $at . -}}
{{- $each = append $each (printf "has(%s)" $at) -}}
{{- end -}}
{{- join " && " $each | default "true" -}}
{{- end }}

{{/* Whether the pod (or pod template) at the path has an annotation that a plugin reviews. Takes dict "path" and "root". */}}
{{- define "bowline.cel.annotated" -}}
{{- include "bowline.cel.annotatedAt" (dict "metadata" (printf "%s.metadata" .path) "root" .root) -}}
{{- end }}

{{/* Whether the metadata has one. Takes dict "metadata" and "root". */}}
{{- define "bowline.cel.annotatedAt" -}}
has({{ .metadata }}.annotations) && {{ include "bowline.access.list" (dict "root" .root "field" "reviewedAnnotations") }}.exists(k, k in {{ .metadata }}.annotations)
{{- end }}

{{/* Whether an annotation, a label or a field was added, removed or changed that a plugin reviews. Takes the root. */}}
{{- define "bowline.cel.reviewedChange" -}}
{{- $each := list -}}
{{- range $field, $name := dict "annotations" "reviewedAnnotations" "labels" "reviewedLabels" -}}
{{- $keys := include "bowline.access.list" (dict "root" $ "field" $name) -}}
{{- if ne $keys "[]" -}}
{{- $each = append $each (include "bowline.cel.entryChanged" (dict "at" (printf "metadata.%s" $field) "keys" $keys)) -}}
{{- end -}}
{{- end -}}
{{- range include "bowline.access.list" (dict "root" . "field" "reviewedFields") | fromJsonArray -}}
{{- $each = append $each (printf "!(%s)" (include "bowline.cel.unchanged" .)) -}}
{{- end -}}
{{- join " || " $each | default "false" -}}
{{- end }}

{{/* Whether an entry of a map was added, removed or changed. Takes dict "at" and "keys". */}}
{{- define "bowline.cel.entryChanged" -}}
{{- $now := include "bowline.cel.field" (dict "of" "object" "path" .at "default" "{}") -}}
{{- $then := include "bowline.cel.field" (dict "of" "oldObject" "path" .at "default" "{}") -}}
{{ .keys }}.exists(k,
  (k in {{ $now }}) != (k in {{ $then }})
  || (k in {{ $now }} && {{ $now }}[k] != {{ $then }}[k]))
{{- end }}

{{/*
Whether an annotation of GPU fractioning may have changed, for plugin nv_fractions: entries are searched only in maps that
differ, and up to a limit.
*/}}
{{- define "bowline.cel.refractioned" -}}
{{- $maps := list "object" "oldObject" }}
(has(object.metadata.annotations) ? object.metadata.annotations : {})
!= (has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {})
&& (
{{- range $index, $object := $maps }}
{{- if $index }} || {{ end }}(has({{ $object }}.metadata.annotations) && (size({{ $object }}.metadata.annotations) > 256
|| {{ $object }}.metadata.annotations.exists(k, k.startsWith('nvidia.com/container.') || k.startsWith('kai.scheduler/container.'))))
{{- end }})
{{- end }}

{{/* The pod template of a workload as a list of one; empty if it has none. */}}
{{- define "bowline.cel.templates" -}}
(has({{ . }}.spec.jobTemplate) ? [{{ . }}.spec.jobTemplate.spec.template] : has({{ . }}.spec.template) ? [{{ . }}.spec.template] : [])
{{- end }}

{{/*
Whether no controller made the object from a template that was validated: denying the ReplicaSet of a Deployment would
block its rollout. Of a configured kind every version counts. The last of the list makes workloads in other projects.
*/}}
{{- define "bowline.cel.notControlled" -}}
!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller
&& (o.apiVersion + '/' + o.kind in ['apps/v1/Deployment', 'apps/v1/StatefulSet', 'apps/v1/DaemonSet',
'apps/v1/ReplicaSet', 'batch/v1/Job', 'batch/v1/CronJob', 'v1/ReplicationController', 'v1/Pod']
{{- range include "bowline.workloads" . | fromJsonArray }}
|| (o.kind == '{{ .kind }}' && o.apiVersion.startsWith('{{ .group }}/'))
{{- end }}))
{{- end }}

{{/* The kinds of config.workloads that need a hook of their own, as a JSON array: those that are not built in. */}}
{{- define "bowline.workloads" -}}
{{- $known := get (.Files.Get "files/workloads.yaml" | fromYaml) "kinds" -}}
{{- $found := list -}}
{{- range $index, $entry := dig "workloads" list .Values.config -}}
{{- $group := $entry.group | default "" -}}
{{- $kind := dict -}}
{{- range $known -}}
{{- if and (not $kind) (eq .kind $entry.kind) (has $group (list "" .group)) -}}
{{- $kind = . -}}
{{- end -}}
{{- end -}}
{{- $own := and $group $entry.resource (or $entry.templates $entry.podSpecs) -}}
{{- if and $kind (or $entry.resource $entry.templates $entry.podSpecs) -}}
{{- fail (printf "config.workloads[%d]: %s is known: leave out its resource, templates and podSpecs" $index $entry.kind) -}}
{{- else if not (or $kind $own) -}}
{{- fail (printf "config.workloads[%d]: %s is not known by its name: give its group, resource and templates or podSpecs" $index $entry.kind) -}}
{{- end -}}
{{- if not $kind.builtIn -}}
{{- $found = append $found ($kind | default $entry) -}}
{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end }}

{{/* The steps of a template's path: fields, [*] for each item of a list, * for each value of an object. */}}
{{- define "bowline.templateSteps" -}}
{{- regexFindAll "\\[\\*\\]|\\*|[A-Za-z0-9_]+" . -1 | toJson -}}
{{- end }}

{{/*
Where a workload describes pods, as a JSON array: "steps" to what a pod's spec and metadata have in common, then "spec"
and "metadata", the fields from there. Of a template the common part is the template; of a pod spec it ends with the
last step for each item or value.
*/}}
{{- define "bowline.podPlaces" -}}
{{- $places := list -}}
{{- range .templates -}}
{{- $steps := include "bowline.templateSteps" . | fromJsonArray -}}
{{- $places = append $places (dict "steps" $steps "spec" (list "spec") "metadata" (list "metadata") "isTemplate" true) -}}
{{- end -}}
{{- range .podSpecs -}}
{{- $steps := include "bowline.templateSteps" .path | fromJsonArray -}}
{{- $metadata := include "bowline.templateSteps" (.metadata | default "") | fromJsonArray -}}
{{- $common := 1 -}}
{{- range $index, $step := $steps -}}
{{- if or (eq $step "[*]") (eq $step "*") -}}
{{- $common = add1 $index | int -}}
{{- end -}}
{{- end -}}
{{- $place := dict "steps" (slice $steps 0 $common) "spec" (slice $steps $common) "isTemplate" false -}}
{{- if $metadata -}}
{{- $_ := set $place "metadata" (slice $metadata $common) -}}
{{- end -}}
{{- $places = append $places $place -}}
{{- end -}}
{{- toJson $places -}}
{{- end }}

{{/*
A write that concerns no pod of ours makes no call.
Whether one of the workload's pods is of ours, or annotated so, or at a path of the wrong form, which the webhook reports.
Takes dict "workload" and "root". If the object does not have the shape of the paths, the expression fails, and the API
server continues without a call.
*/}}
{{- define "bowline.cel.templateOfOurs" -}}
{{- $each := list -}}
{{- range include "bowline.podPlaces" .workload | fromJsonArray -}}
{{- $each = append $each (include "bowline.cel.ofOursBelow" (dict "at" "object" "steps" .steps "place" . "workload" $.workload "root" $.root)) -}}
{{- end -}}
{{- with .workload.podMetadata -}}
{{- $exists := include "bowline.cel.has" (dict "at" "object" "steps" (splitList "." .)) -}}
{{- $annotated := include "bowline.cel.annotatedAt" (dict "metadata" (printf "object.%s" .) "root" $.root) -}}
{{- $each = append $each (printf "(%s && %s)" $exists $annotated) -}}
{{- end -}}
{{- join " || " $each -}}
{{- end }}

{{- define "bowline.cel.ofOursBelow" -}}
{{- if not .steps -}}
{{- $spec := join "." (prepend .place.spec .at) -}}
{{- $isSpec := include "bowline.cel.has" (dict "at" .at "steps" .place.spec) -}}
(({{ $isSpec }} && {{ include "bowline.cel.specOfOurs" (dict "spec" $spec "workload" .workload "root" .root) }})
{{- if hasKey .place "metadata" }}
{{- $metadata := join "." (prepend .place.metadata .at) }}
|| ({{ include "bowline.cel.has" (dict "at" .at "steps" .place.metadata) }} && {{ include "bowline.cel.annotatedAt" (dict "metadata" $metadata "root" .root) }})
{{- end }}
{{- if .place.isTemplate }}
|| (!has({{ .at }}.spec) && has({{ .at }}.containers))
{{- else }}
|| ({{ $isSpec }} && !has({{ $spec }}.containers) && has({{ $spec }}.spec) && has({{ $spec }}.spec.containers))
{{- end -}}
)
{{- else -}}
{{- $step := first .steps -}}
{{- $below := dict "steps" (rest .steps) "place" .place "workload" .workload "root" .root -}}
{{- $each := printf "e%d" (len .steps) -}}
{{- if eq $step "[*]" -}}
{{ .at }}.exists({{ $each }}, {{ include "bowline.cel.ofOursBelow" (set $below "at" $each) }})
{{- else if eq $step "*" -}}
{{ .at }}.exists({{ $each }}, {{ include "bowline.cel.ofOursBelow" (set $below "at" (printf "%s[%s]" .at $each)) }})
{{- else -}}
{{- $at := printf "%s.%s" .at $step -}}
(has({{ $at }}) && {{ include "bowline.cel.ofOursBelow" (set $below "at" $at) }})
{{- end -}}
{{- end -}}
{{- end }}

{{/*
Whether an object of the workload is new, or stays and gets another template, or another of what its controller adds to one. Takes dict "workload" and "root". Scaling and
status make no call. A template that only moves within its list does: the webhook then sees that it is not new.
*/}}
{{- define "bowline.cel.templateChanged" -}}
{{- $each := list -}}
{{- $paths := .workload.templates | default list -}}
{{- range .workload.podSpecs -}}
{{- $paths = append $paths .path -}}
{{- with .metadata -}}
{{- $paths = append $paths (printf "%s.annotations" .) -}}
{{- end -}}
{{- end -}}
{{- range uniq $paths -}}
{{- $steps := include "bowline.templateSteps" . | fromJsonArray -}}
{{- $each = append $each (include "bowline.cel.changedBelow" (dict "now" "object" "then" "oldObject" "steps" $steps)) -}}
{{- end -}}
{{- with .workload.podMetadata -}}
{{- $keys := include "bowline.access.list" (dict "root" $.root "field" "reviewedAnnotations") -}}
{{- $each = append $each (include "bowline.cel.entryChanged" (dict "at" (printf "%s.annotations" .) "keys" $keys)) -}}
{{- end -}}
{{- with .workload.schedulerField -}}
{{- $now := include "bowline.cel.field" (dict "of" "object" "path" . "default" "''") -}}
{{- $each = append $each (printf "%s != %s" $now (include "bowline.cel.field" (dict "of" "oldObject" "path" . "default" "''"))) -}}
{{- end -}}
{{- if .workload.queueScheduler -}}
{{- $each = append $each (include "bowline.cel.entryChanged" (dict "at" "metadata.labels" "keys" "['kai.scheduler/queue']")) -}}
{{- end -}}
request.operation == 'CREATE' || (!has(object.metadata.deletionTimestamp) && ({{ join " || " $each }}))
{{- end }}

{{- define "bowline.cel.changedBelow" -}}
{{- if not .steps -}}
{{ .now }} != {{ .then }}
{{- else -}}
{{- $step := first .steps -}}
{{- $steps := rest .steps -}}
{{- $each := printf "e%d" (len .steps) -}}
{{- if eq $step "[*]" -}}
{{- $below := include "bowline.cel.templatesBelow" (dict "at" $each "steps" $steps) -}}
{{ .now }}.map({{ $each }}, {{ $below }}) != {{ .then }}.map({{ $each }}, {{ $below }})
{{- else if eq $step "*" -}}
{{- $now := printf "%s[%s]" .now $each -}}
{{- $then := printf "%s[%s]" .then $each -}}
{{ .now }}.exists({{ $each }}, !({{ $each }} in {{ .then }}) || {{ include "bowline.cel.changedBelow" (dict "now" $now "then" $then "steps" $steps) }})
{{- else -}}
{{- $now := printf "%s.%s" .now $step -}}
{{- $then := printf "%s.%s" .then $step -}}
(has({{ $now }}) && (!has({{ $then }}) || {{ include "bowline.cel.changedBelow" (dict "now" $now "then" $then "steps" $steps) }}))
{{- end -}}
{{- end -}}
{{- end }}

{{/* What is at the end of the steps, in lists within lists. Takes dict "at" and "steps". */}}
{{- define "bowline.cel.templatesBelow" -}}
{{- if not .steps -}}
[{{ .at }}]
{{- else -}}
{{- $step := first .steps -}}
{{- $steps := rest .steps -}}
{{- $each := printf "e%d" (len .steps) -}}
{{- if eq $step "[*]" -}}
{{ .at }}.map({{ $each }}, {{ include "bowline.cel.templatesBelow" (dict "at" $each "steps" $steps) }})
{{- else if eq $step "*" -}}
{{ .at }}.map({{ $each }}, {{ include "bowline.cel.templatesBelow" (dict "at" (printf "%s[%s]" .at $each) "steps" $steps) }})
{{- else -}}
{{- $at := printf "%s.%s" .at $step -}}
(has({{ $at }}) ? {{ include "bowline.cel.templatesBelow" (dict "at" $at "steps" $steps) }} : [])
{{- end -}}
{{- end -}}
{{- end }}

{{/* kube-system and our own namespace are never in scope: a webhook in their path could lock the cluster out of itself. */}}
{{- define "bowline.namespaceSelector" -}}
{{- $always := list "kube-system" .Release.Namespace -}}
{{- $selector := .Values.webhook.namespaceSelector | default dict -}}
{{- with $selector.matchLabels }}
matchLabels: {{- toYaml . | nindent 2 }}
{{- end }}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{- concat $always (dig "namespaces" "exclude" list .Values.config) | uniq | toYaml | nindent 6 }}
{{- with $selector.matchExpressions }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{/*
Annotations of both configurations. cert-manager reads from them which CA to write; the admissions enforcer of Azure's AKS, which would
take over the namespaceSelector, that it must not.
*/}}
{{- define "bowline.configurationAnnotations" -}}
{{- $own := dict -}}
{{- if eq .Values.webhook.tls.mode "cert-manager" -}}
{{- $own = dict "cert-manager.io/inject-ca-from" (printf "%s/%s" .Release.Namespace (include "bowline.webhook.name" .)) -}}
{{- end -}}
{{- toYaml (merge (dict) $own (.Values.webhook.annotations | default dict) (dict "admissions.enforcer/disabled" "true")) -}}
{{- end }}

{{/* Where the API server calls. Takes dict "root" and "path". No caBundle: who makes the certificate owns it. */}}
{{- define "bowline.clientConfig" -}}
{{- if .root.Values.webhook.url }}
url: {{ printf "%s%s" (trimSuffix "/" .root.Values.webhook.url) .path }}
{{- else }}
service:
  name: {{ include "bowline.webhook.name" .root }}
  namespace: {{ .root.Release.Namespace | quote }}
  path: {{ .path }}
  port: 443
{{- end }}
{{- end }}

{{/* What all hooks have in common. Takes dict "root" and "path". */}}
{{- define "bowline.hook" -}}
admissionReviewVersions: [v1]
sideEffects: None
matchPolicy: Equivalent
clientConfig: {{- include "bowline.clientConfig" . | trim | nindent 2 }}
namespaceSelector: {{- include "bowline.namespaceSelector" .root | trim | nindent 2 }}
{{- end }}

{{/* The kubelet's picture of a static pod: it runs whatever admission decides. */}}
{{- define "bowline.cel.notMirror" -}}
!has(object.metadata.annotations) || !('kubernetes.io/config.mirror' in object.metadata.annotations)
{{- end }}

{{/* Which BindRequests the hook sees: new ones, and those whose spec changes (only backoffLimit can). The reconciler's
own writes (status, finalizer, owner reference) make no call. */}}
{{- define "bowline.bindRequestRules" -}}
rules:
  - apiGroups: [scheduling.run.ai]
    apiVersions: [v1alpha2]
    resources: [bindrequests]
    operations: [CREATE, UPDATE]
    scope: Namespaced
matchConditions:
  - name: created-or-changed
    expression: >-
      request.operation == 'CREATE' || (!has(object.metadata.deletionTimestamp)
      && (has(object.spec) != has(oldObject.spec) || (has(object.spec) && object.spec != oldObject.spec)))
{{- end }}

{{/* Which ephemeral containers both hooks see: those of pods of ours; for gpu_sharing alone, of shares. */}}
{{- define "bowline.ephemeralContainerRules" -}}
{{- $ofShares := true -}}
{{- range include "bowline.pluginAccess" . | fromJsonArray -}}
{{- if and (has "ephemeralcontainers" (.hooks | default list)) (ne .plugin "gpu_sharing") -}}{{- $ofShares = false -}}{{- end -}}
{{- end -}}
rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods/ephemeralcontainers]
    operations: [UPDATE]
    scope: Namespaced
matchConditions:
  - name: ours
    expression: {{ include "bowline.cel.ours" (dict "path" "object" "root" .) | quote }}
{{- if $ofShares }}
  - name: shares
    expression: has(object.metadata.annotations) && ['gpu-fraction', 'gpu-memory'].exists(a, a in object.metadata.annotations)
{{- end }}
{{- end }}
