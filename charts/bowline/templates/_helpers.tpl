{{/*
Base of every name. 52 = 63 (a label, a Service) minus "-reconciler", the longest suffix. A release's name may have dots
and begin with a digit, a Service's may not.
*/}}
{{- define "bowline.fullname" -}}
{{- include "bowline.nameOf" (.Values.fullnameOverride | default .Release.Name) -}}
{{- end }}

{{/* A text as the beginning of names. */}}
{{- define "bowline.nameOf" -}}
{{- $name := replace "." "-" . -}}
{{- print (regexMatch "^[0-9]" $name | ternary "bowline-" "") $name | trunc 52 | trimSuffix "-" -}}
{{- end }}

{{- define "bowline.webhook.name" -}}
{{ include "bowline.fullname" . }}-webhook
{{- end }}

{{/* Rendered without data, which the webhook writes: data that is rendered would be undone by every upgrade. */}}
{{- define "bowline.webhook.caSecret" -}}
{{ include "bowline.fullname" . }}-ca
{{- end }}

{{/* The Secret that a certificate from elsewhere is in. */}}
{{- define "bowline.webhook.tlsSecret" -}}
{{- .Values.webhook.tls.secretName | default (printf "%s-tls" (include "bowline.webhook.name" .)) -}}
{{- end }}

{{- define "bowline.reconciler.name" -}}
{{ include "bowline.fullname" . }}-reconciler
{{- end }}

{{/*
With a name of its own a chart may be in one release several times (aliases of a parent chart): its selectors then have
that name too. Without one they stay as they are, since a Deployment's selector cannot be changed.
*/}}
{{- define "bowline.selectorLabels" -}}
app.kubernetes.io/name: bowline
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- if ne (include "bowline.fullname" .) (include "bowline.nameOf" .Release.Name) }}
bowline.dev/name: {{ .Values.fullnameOverride | quote }}
{{- end }}
{{- end }}

{{- define "bowline.labels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
{{ include "bowline.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The ServiceAccount of a process: the configured one, or that of the process's name. Takes the root. */}}
{{- define "bowline.webhook.account" -}}
{{ .Values.webhook.serviceAccountName | default (include "bowline.webhook.name" .) }}
{{- end }}

{{- define "bowline.reconciler.account" -}}
{{ .Values.reconciler.serviceAccountName | default (include "bowline.reconciler.name" .) }}
{{- end }}

{{/*
Binds accounts to the role of the same name. Takes dict "root", "name", "namespace" (without one a ClusterRole), "accounts" and
"from", their namespace; "annotations" if it is a hook.
*/}}
{{- define "bowline.roleBinding" -}}
{{- $kind := hasKey . "namespace" | ternary "Role" "ClusterRole" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels: {{- include "bowline.labels" .root | nindent 4 }}
  {{- with .annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ .name }}}
subjects:
  {{- range .accounts }}
  - {kind: ServiceAccount, name: {{ . | quote }}, namespace: {{ $.from | quote }}}
  {{- end }}
{{- end }}

{{/*
Whether the objects of a hook are rendered: "true" or nothing. Takes dict "root" and "name". Auto: only where Helm runs against
a cluster, so that a rendered text is harmless to apply (the Job before an uninstall stops the reconcilers): there a lookup finds
nothing.
*/}}
{{- define "bowline.hookEnabled" -}}
{{- $value := index .root.Values.hooks .name -}}
{{- if eq (toString $value) "Auto" -}}
{{- $value = lookup "v1" "Namespace" "" "kube-system" -}}
{{- end -}}
{{- if $value }}true{{ end }}
{{- end }}

{{/* Where images are pulled from: a parent chart's setting, or the image's own. */}}
{{- define "bowline.registry" -}}
{{ dig "imageRegistry" "" (.Values.global | default dict) | default .Values.image.registry }}
{{- end }}

{{/* Pull secrets of the image and of a parent chart, where each may also be a name: a JSON array. */}}
{{- define "bowline.pullSecrets" -}}
{{- $secrets := .Values.image.pullSecrets | default list }}
{{- range dig "imagePullSecrets" list (.Values.global | default dict) }}
{{- $secrets = append $secrets (kindIs "string" . | ternary (dict "name" .) .) }}
{{- end }}
{{- uniq $secrets | toJson }}
{{- end }}

{{/*
The image. A packaged chart knows the digest of the image it was released with (files/release.yaml), which is used as long as
registry, repository and tag are those of the release.
*/}}
{{- define "bowline.image" -}}
{{- $image := .Values.image.repository }}
{{- with include "bowline.registry" . }}{{ $image = printf "%s/%s" . $image }}{{ end }}
{{- $released := .Files.Get "files/release.yaml" | fromYaml }}
{{- if .Values.image.digest }}
{{- print $image "@" .Values.image.digest }}
{{- else if .Values.image.tag }}
{{- print $image ":" .Values.image.tag }}
{{- else if and $released (eq $image $released.image) }}
{{- print $image "@" $released.digest }}
{{- else }}
{{- print $image ":" .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "bowline.config" -}}
{{- $fixed := dict "apiVersion" "config.bowline.dev/v1alpha1" "kind" "BowlineConfiguration" }}
{{- if ne (include "bowline.mode" .) "Enforce" }}
{{- $_ := set $fixed "admission" (dict "mode" (include "bowline.mode" .)) }}
{{- end }}
{{- $_ := set $fixed "plugins" (include "bowline.plugins" . | fromJsonArray) }}
{{- if .Values.config.plugins }}
{{- $granted := list }}
{{- range .Values.pluginAccess }}{{ $granted = append $granted .plugin }}{{ end }}
{{- $_ := set $fixed "grantedPlugins" $granted }}
{{- end }}
{{- $filled := dict "gpuSharing" (dict "agentImage" (include "bowline.image" .)) }}
{{- merge $fixed (deepCopy (omit .Values.config "plugins")) $filled | toYaml }}
{{- end }}

{{/* Not empty if the webhook denies repeated decisions. */}}
{{- define "bowline.repeats" -}}
{{- $longest := dig "admission" "repeatBackoff" "60s" .Values.config | toString }}
{{- if and (ne (include "bowline.mode" .) "Off") (not (regexMatch "^([0.]+(ms|s|m|h))+$" $longest)) }}true{{ end }}
{{- end }}

{{/* config.plugins as a list, a JSON array: it is a map by name, so that files of values combine (Helm replaces a list as a whole), or a list as in the configuration. */}}
{{- define "bowline.givenPlugins" -}}
{{- $given := .Values.config.plugins | default list }}
{{- if kindIs "map" $given }}
{{- $plugins := list }}
{{- range $name, $plugin := $given }}
{{- $plugins = append $plugins (merge (dict "name" $name) ($plugin | default dict)) }}
{{- end }}
{{- $given = $plugins }}
{{- end }}
{{- toJson $given }}
{{- end }}

{{/* The PriorityClass of reservation pods: the given one, or the chart's own. */}}
{{- define "bowline.reservationPriorityClass" -}}
{{ .Values.reservation.priorityClassName | default (printf "%s-shares" (include "bowline.fullname" .)) }}
{{- end }}

{{/* These plugins with the security contexts and the values of reservation as arguments of gpu_sharing, which an argument there precedes: a JSON array. */}}
{{- define "bowline.plugins" -}}
{{- $given := dict "reservationPriorityClassName" (include "bowline.reservationPriorityClass" .) }}
{{- $_ := set $given "reservationRequests" (dig "requests" dict (.Values.reservation.resources | default dict)) }}
{{- $_ := set $given "reservationLimits" (dig "limits" dict (.Values.reservation.resources | default dict)) }}
{{- $args := dict }}
{{- range $name, $value := $given }}
{{- if $value }}{{ $_ := set $args $name $value }}{{ end }}
{{- end }}
{{- /* Without a context there is none: the plugin's own default would be one. */}}
{{- $_ := set $args "reservationPodSecurityContext" (.Values.podSecurityContext | default dict) }}
{{- $_ := set $args "reservationContainerSecurityContext" (.Values.containerSecurityContext | default dict) }}
{{- $plugins := list }}
{{- $own := dict "name" "gpu_sharing" "args" $args }}
{{- range $plugin := include "bowline.givenPlugins" . | fromJsonArray }}
{{- if eq .name "gpu_sharing" }}
{{- /* A security context is one argument, which is replaced as a whole. */}}
{{- range $name := list "reservationPodSecurityContext" "reservationContainerSecurityContext" }}
{{- if hasKey ($plugin.args | default dict) $name }}{{ $args = omit $args $name }}{{ end }}
{{- end }}
{{- $own = merge (dict "args" (merge (dict) (.args | default dict) $args)) . }}
{{- else }}
{{- $plugins = append $plugins . }}
{{- end }}
{{- end }}
{{- append $plugins $own | toJson }}
{{- end }}

{{/* The name of the configuration's ConfigMap, which follows from its content (decision 165). */}}
{{- define "bowline.configName" -}}
{{ include "bowline.fullname" . }}-config-{{ include "bowline.config" . | sha256sum | trunc 10 }}
{{- end }}

{{/* Whether plugin gpu_sharing is enabled: "true" or nothing. With config.gpuSharing.enabled: false it keeps the shares that run. */}}
{{- define "bowline.gpuSharing" -}}
{{- include "bowline.pluginEnabled" (dict "root" . "name" "gpu_sharing" "default" true) }}
{{- end }}

{{/* An argument of plugin gpu_sharing. Takes dict "root", "name" and "default". */}}
{{- define "bowline.sharingArgument" -}}
{{- $value := .default }}
{{- $name := .name }}
{{- range include "bowline.plugins" .root | fromJsonArray }}
{{- if eq .name "gpu_sharing" }}{{ $value = dig "args" $name $value . }}{{ end }}
{{- end }}
{{- $value }}
{{- end }}

{{- define "bowline.reservationAppLabel" -}}
{{- include "bowline.sharingArgument" (dict "root" . "name" "reservationAppLabel" "default" "kai-resource-reservation") }}
{{- end }}

{{/*
The accounts of agents, a JSON array: also that of pods which an earlier version or KAI-Scheduler's binder has created, and
which an earlier version's reconciler creates until the upgrade has replaced it.
*/}}
{{- define "bowline.reservationAccounts" -}}
{{ list "bowline-gpu-agent" "kai-resource-reservation" | toJson }}
{{- end }}

{{- define "bowline.reservationNamespace" -}}
{{ dig "gpuSharing" "reservationNamespace" "kai-resource-reservation" .Values.config }}
{{- end }}

{{/*
What the pods of both processes have in common. Takes dict "root" and "labels", by which the process's pods are found.
*/}}
{{- define "bowline.pod" -}}
# Otherwise every Service of the namespace is in the environment.
enableServiceLinks: false
{{- with .root.Values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "bowline.pullSecrets" .root | fromJsonArray }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
{{- range . }}
{{- $selector := .labelSelector }}
{{- if kindIs "invalid" $selector }}
{{- $selector = dict "matchLabels" $.labels }}
{{- end }}
  - {{- toYaml (set (omit . "labelSelector") "labelSelector" $selector) | nindent 4 }}
{{- end }}
{{- end }}
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
- name: POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The probes of a process. */}}
{{- define "bowline.probes" -}}
# Two minutes to start; only then does liveness count.
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end }}

{{/* Whether a plugin is enabled: "true" or nothing. Takes the root, the plugin's name and its default. */}}
{{- define "bowline.pluginEnabled" -}}
{{- $enabled := .default }}
{{- range include "bowline.givenPlugins" .root | fromJsonArray }}
{{- if eq .name $.name }}{{ $enabled = dig "enabled" true . }}{{ end }}
{{- end }}
{{- if $enabled }}true{{ end }}
{{- end }}

{{/* Whether plugin checks is enabled: "true" or nothing. Takes the root. */}}
{{- define "bowline.checks" -}}
{{- include "bowline.pluginEnabled" (dict "root" . "name" "checks" "default" false) -}}
{{- end }}

{{/* Whether plugin nv_fractions is enabled, on some nodes or all: "true" or nothing. Takes the root. */}}
{{- define "bowline.nvFractions" -}}
{{- $setting := dig "gpuSharing" "nvFractions" false .Values.config | toString -}}
{{- include "bowline.pluginEnabled" (dict "root" . "name" "nv_fractions" "default" (ne $setting "false")) -}}
{{- end }}

{{/*
Why GPU shares do not work in this cluster, as the webhook finds it; nothing where Helm is not at a cluster. Takes the root.
Lists only: who may grant the reconciler's role has the right to list both. An absent kind cannot be looked up.
*/}}
{{- define "bowline.runtimeProblem" -}}
{{- if and (lookup "v1" "Namespace" "" "kube-system") (include "bowline.gpuSharing" .) (dig "gpuSharing" "enabled" true .Values.config) -}}
{{- $class := dig "gpuSharing" "runtimeClassName" "nvidia" .Values.config -}}
{{- $nri := false -}}
{{- $old := false -}}
{{- if .Capabilities.APIVersions.Has "nvidia.com/v1/ClusterPolicy" -}}
{{- range (lookup "nvidia.com/v1" "ClusterPolicy" "" "").items -}}
{{- $cdi := dig "spec" "cdi" dict . -}}
{{- $nri = or $nri (and (dig "enabled" false $cdi) (dig "nriPluginEnabled" false $cdi)) -}}
{{- $toolkit := dig "spec" "toolkit" "version" "" . | toString | splitList "-" | first -}}
{{- $old = or $old (and (regexMatch "^v[0-9]+(\\.[0-9]+){0,2}$" $toolkit) (semverCompare "<1.20.0" $toolkit)) -}}
{{- end -}}
{{- end -}}
{{- $exists := false -}}
{{- range (lookup "node.k8s.io/v1" "RuntimeClass" "" "").items -}}
{{- $exists = or $exists (eq .metadata.name $class) -}}
{{- end -}}
{{- if $exists -}}
{{- else if and $nri (or (not $old) (include "bowline.nvFractions" .)) -}}
{{- else if $nri -}}
GPU shares do not work: NVIDIA's GPU operator is in NRI mode with a container toolkit before 1.20, which gives devices to the
operator's own pods only. Upgrade the toolkit, or set config.gpuSharing.nvFractions (docs/support-matrix.md).
{{- else if $class -}}
GPU shares are denied until RuntimeClass {{ $class }} exists. NVIDIA's GPU operator creates it; for another class, or none, set
config.gpuSharing.runtimeClassName. `bowline check` shows what is missing.
{{- end -}}
{{- end -}}
{{- end }}
