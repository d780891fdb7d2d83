{{/*
What the API server decides before it calls: every condition here spares a call, and with failurePolicy Fail also a
refusal while nobody answers. Plain CEL without optionals, total by has(), so that no object makes one fail.
*/}}

{{/* Fixed at creation, because the container's environment is. Held equal to shared/api/names.py by a test. */}}
{{- define "bowline.ownedAnnotations" -}}
['gpu-fraction', 'gpu-memory', 'gpu-fraction-num-devices', 'gpu-fraction-container-name', 'mps', 'runai/shared-gpu-configmap']
{{- end }}

{{/* Whether the pod (or pod template) at the path . is of a listed scheduler. Takes dict "path" and "root". */}}
{{- define "bowline.cel.ours" -}}
{{- $names := .root.Values.config.schedulerNames -}}
{{- if has "*" $names -}}
true
{{- else -}}
(has({{ .path }}.spec.schedulerName) ? {{ .path }}.spec.schedulerName : 'default-scheduler') in {{ toJson $names }}
{{- end -}}
{{- end }}

{{/* Whether an owned annotation is on the pod (or pod template) at the path. */}}
{{- define "bowline.cel.annotated" -}}
has({{ . }}.metadata.annotations) && {{ include "bowline.ownedAnnotations" . }}.exists(k, k in {{ . }}.metadata.annotations)
{{- end }}

{{/* Whether an owned annotation was added, removed or changed. */}}
{{- define "bowline.cel.reannotated" -}}
{{ include "bowline.ownedAnnotations" . }}.exists(k,
  (has(object.metadata.annotations) && k in object.metadata.annotations)
  != (has(oldObject.metadata.annotations) && k in oldObject.metadata.annotations)
  || (has(object.metadata.annotations) && k in object.metadata.annotations
      && object.metadata.annotations[k] != oldObject.metadata.annotations[k]))
{{- end }}

{{/* The pod template of a workload as a list of one; empty if it has none. */}}
{{- define "bowline.cel.templates" -}}
(has({{ . }}.spec.jobTemplate) ? [{{ . }}.spec.jobTemplate.spec.template] : has({{ . }}.spec.template) ? [{{ . }}.spec.template] : [])
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

{{/* Annotations of both configurations; cert-manager is told whose CA to write into them. */}}
{{- define "bowline.configurationAnnotations" -}}
{{- $own := dict -}}
{{- if eq .Values.webhook.tls.mode "cert-manager" -}}
{{- $own = dict "cert-manager.io/inject-ca-from" (printf "%s/%s" .Release.Namespace (include "bowline.webhook.name" .)) -}}
{{- end -}}
{{- with merge (dict) $own .Values.webhook.annotations -}}
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
  namespace: {{ .root.Release.Namespace }}
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

{{/* The kubelet's picture of a static pod: it runs whatever is said about it. */}}
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
