{{/*
Conditions that the API server evaluates before it calls a webhook: each saves a call, and with failurePolicy Fail also
a denial while no replica is available. Plain CEL without optionals, total by has(), so that no object makes one fail.
*/}}


{{/* Whether the pod (or pod template) at the path . is of a listed scheduler. Takes dict "path" and "root". */}}
{{- define "bowline.cel.ours" -}}
{{- $names := .root.Values.config.schedulerNames -}}
{{- if has "*" $names -}}
true
{{- else -}}
(has({{ .path }}.spec.schedulerName) ? {{ .path }}.spec.schedulerName : 'default-scheduler') in {{ toJson $names }}
{{- end -}}
{{- end }}

{{/* Whether the pod (or pod template) at the path has an annotation that a plugin reviews. Takes dict "path" and "root". */}}
{{- define "bowline.cel.annotated" -}}
has({{ .path }}.metadata.annotations) && {{ include "bowline.access.list" (dict "root" .root "field" "reviewedAnnotations") }}.exists(k, k in {{ .path }}.metadata.annotations)
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
{{ .keys }}.exists(k,
  (has(object.{{ .at }}) && k in object.{{ .at }}) != (has(oldObject.{{ .at }}) && k in oldObject.{{ .at }})
  || (has(object.{{ .at }}) && k in object.{{ .at }} && object.{{ .at }}[k] != oldObject.{{ .at }}[k]))
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
{{- if and (eq .kind $entry.kind) (has $group (list "" .group)) -}}
{{- $kind = . -}}
{{- end -}}
{{- end -}}
{{- $own := and $group $entry.resource $entry.templates -}}
{{- if and $kind (or $entry.resource $entry.templates) -}}
{{- fail (printf "config.workloads[%d]: %s is known: leave out its resource and templates" $index $entry.kind) -}}
{{- else if not (or $kind $own) -}}
{{- fail (printf "config.workloads[%d]: %s is not known by its name: give its group, resource and templates" $index $entry.kind) -}}
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
Whether one of the workload's templates is of ours, or annotated so. Takes dict "workload" and "root". If the object
does not have the shape of the paths, the expression fails, and the API server continues without a call.
*/}}
{{- define "bowline.cel.templateOfOurs" -}}
{{- $each := list -}}
{{- range .workload.templates -}}
{{- $steps := include "bowline.templateSteps" . | fromJsonArray -}}
{{- $each = append $each (include "bowline.cel.ofOursBelow" (dict "at" "object" "steps" $steps "root" $.root)) -}}
{{- end -}}
{{- join " || " $each -}}
{{- end }}

{{- define "bowline.cel.ofOursBelow" -}}
{{- if not .steps -}}
((has({{ .at }}.spec) && {{ include "bowline.cel.ours" (dict "path" .at "root" .root) }})
|| (has({{ .at }}.metadata) && {{ include "bowline.cel.annotated" (dict "path" .at "root" .root) }}))
{{- else -}}
{{- $step := first .steps -}}
{{- $below := dict "steps" (rest .steps) "root" .root -}}
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
Whether an object of the workload is new, or stays and gets another template. Takes dict "workload". Scaling and status
make no call. A template that only moves within its list does: the webhook then sees that it is not new.
*/}}
{{- define "bowline.cel.templateChanged" -}}
{{- $each := list -}}
{{- range .workload.templates -}}
{{- $steps := include "bowline.templateSteps" . | fromJsonArray -}}
{{- $each = append $each (include "bowline.cel.changedBelow" (dict "now" "object" "then" "oldObject" "steps" $steps)) -}}
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
{{- with .Values.webhook.namespaceSelector.matchLabels }}
matchLabels: {{- toYaml . | nindent 2 }}
{{- end }}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{- concat $always (dig "namespaces" "exclude" list .Values.config) | uniq | toYaml | nindent 6 }}
{{- with .Values.webhook.namespaceSelector.matchExpressions }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{/* Annotations of both configurations; cert-manager reads from them which CA to write. */}}
{{- define "bowline.configurationAnnotations" -}}
{{- $own := dict -}}
{{- if eq .Values.webhook.tls.mode "cert-manager" -}}
{{- $own = dict "cert-manager.io/inject-ca-from" (printf "%s/%s" .Release.Namespace (include "bowline.webhook.name" .)) -}}
{{- end -}}
{{- with merge (dict) $own (.Values.webhook.annotations | default dict) -}}
{{- toYaml . -}}
{{- end -}}
{{- end }}

{{/* Where the API server calls. Takes dict "root" and "path". No caBundle: the webhook owns it. */}}
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

{{/* Which BindRequests both hooks see: new ones, and those whose spec changes (only backoffLimit can). The reconciler's
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

{{/* Which ephemeral containers both hooks of device_access see: those of pods of ours. */}}
{{- define "bowline.ephemeralContainerRules" -}}
rules:
  - apiGroups: [""]
    apiVersions: [v1]
    resources: [pods/ephemeralcontainers]
    operations: [UPDATE]
    scope: Namespaced
matchConditions:
  - name: ours
    expression: {{ include "bowline.cel.ours" (dict "path" "object" "root" .) | quote }}
{{- end }}
