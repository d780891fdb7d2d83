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

{{/*
The same for what validates users' objects: another release does so for one without a webhook, and twice would be once too
often, since each release trusts its own reconciler.
*/}}
{{- define "bowline.usersAdmission" -}}
{{- if .Values.webhook.enabled }}{{ include "bowline.admission" . }}{{ end }}
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
system:serviceaccount:{{ .Release.Namespace }}:{{ include "bowline.reconciler.name" . }}
{{- end }}

{{- define "bowline.agent.username" -}}
system:serviceaccount:{{ include "bowline.reservationNamespace" . }}:{{ include "bowline.reservationAccount" . }}
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

{{/* Variables NAME, oldNAME and NAMEChanged of a map in the metadata. Takes its field: labels or annotations. */}}
{{- define "bowline.policy.changes" -}}
- name: {{ . }}
  expression: 'object != null && has(object.metadata.{{ . }}) ? object.metadata.{{ . }} : {}'
- name: {{ . }}Before
  expression: 'oldObject != null && has(oldObject.metadata.{{ . }}) ? oldObject.metadata.{{ . }} : {}'
- name: {{ . }}Changed
  expression: >-
    variables.{{ . }}.filter(k, !(k in variables.{{ . }}Before) || variables.{{ . }}[k] != variables.{{ . }}Before[k])
    + variables.{{ . }}Before.filter(k, !(k in variables.{{ . }}))
{{- end }}

{{/* Whether the label k records which pod shares which device. Held equal to shared/api/names.py by a test. */}}
{{- define "bowline.cel.sharingLabel" -}}
(k == 'runai-gpu-group' || k.startsWith('runai-gpu-group/') || k == 'bowline.dev/gpu-sharing')
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
