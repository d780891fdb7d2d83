{{/*
Base of every name. 52 = 63 (a label, a Service) minus "-reconciler", the longest suffix.
*/}}
{{- define "bowline.fullname" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "bowline.webhook.name" -}}
{{ include "bowline.fullname" . }}-webhook
{{- end }}

{{- define "bowline.reconciler.name" -}}
{{ include "bowline.fullname" . }}-reconciler
{{- end }}

{{- define "bowline.selectorLabels" -}}
app.kubernetes.io/name: bowline
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "bowline.labels" -}}
{{ include "bowline.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "bowline.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "bowline.config" -}}
{{ merge (dict "apiVersion" "config.bowline.dev/v1alpha1" "kind" "BowlineConfiguration") .Values.config | toYaml }}
{{- end }}

{{/* Where a process's pods may run. Takes the process's values and the labels its pods are found by. */}}
{{- define "bowline.placement" -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
  - {{- toYaml (merge (dict) . (dict "labelSelector" (dict "matchLabels" $.labels))) | nindent 4 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "bowline.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10000
runAsGroup: 10000
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "bowline.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "bowline.env" -}}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}

{{- define "bowline.probes" -}}
livenessProbe:
  httpGet:
    path: /healthz
    port: metrics
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /readyz
    port: metrics
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}
