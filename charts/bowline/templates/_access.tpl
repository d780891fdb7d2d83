{{/*
What plugins need of the cluster, as data: the built-in ones' in files/plugins.yaml, those of others in pluginAccess, as
`bowline plugin access` prints it. Rights, conditions of hooks and exceptions of policies are rendered from here. Decision 195.
*/}}

{{/* The access of every enabled plugin, a JSON array. Takes the root. */}}
{{- define "bowline.pluginAccess" -}}
{{- $all := list -}}
{{- range get (.Files.Get "files/plugins.yaml" | fromYaml) "plugins" -}}
{{- $enabled := include "bowline.pluginEnabled" (dict "root" $ "name" .plugin "default" .enabled) -}}
{{- if eq .plugin "nv_fractions" -}}
{{- $enabled = include "bowline.nvFractions" $ -}}
{{- end -}}
{{- if $enabled -}}
{{- $all = append $all . -}}
{{- end -}}
{{- end -}}
{{- concat $all (.Values.pluginAccess | default list) | toJson -}}
{{- end }}

{{/* What the plugins have in a list, a JSON array, which is also CEL. Takes dict "root" and "field". */}}
{{- define "bowline.access.list" -}}
{{- $items := list -}}
{{- range include "bowline.pluginAccess" .root | fromJsonArray -}}
{{- $items = concat $items (get . $.field | default list) -}}
{{- end -}}
{{- uniq $items | toJson -}}
{{- end }}

{{/* Whether a plugin reviews the objects of a hook: "true" or nothing. Takes dict "root" and "hook". */}}
{{- define "bowline.access.reviews" -}}
{{- if has .hook (include "bowline.access.list" (dict "root" .root "field" "hooks") | fromJsonArray) }}true{{ end }}
{{- end }}

{{/* A rule of a role. Takes an item of rules. */}}
{{- define "bowline.access.role" -}}
- apiGroups: [{{ .group | default "" | quote }}]
  resources: [{{ .resource }}]
  {{- with .names }}
  resourceNames: {{ toJson . }}
  {{- end }}
  verbs: {{ toJson .verbs }}
{{- end }}

{{/* Whether the reconciler patches the metadata of any pod: "true" or nothing. Takes the root. */}}
{{- define "bowline.access.patchesPods" -}}
{{- $labels := include "bowline.access.list" (dict "root" . "field" "podLabels") -}}
{{- $annotations := include "bowline.access.list" (dict "root" . "field" "podAnnotations") -}}
{{- if or (ne $labels "[]") (ne $annotations "[]") }}true{{ end }}
{{- end }}

{{/* The operations of a rule's verbs, a JSON array, empty if it only reads. Takes the verbs. */}}
{{- define "bowline.access.operations" -}}
{{- $operations := list -}}
{{- range . -}}
{{- with get (dict "create" "CREATE" "update" "UPDATE" "patch" "UPDATE" "delete" "DELETE") . -}}
{{- $operations = append $operations . -}}
{{- end -}}
{{- end -}}
{{- uniq $operations | toJson -}}
{{- end }}

{{/* The rules of other plugins that write, a JSON array. Takes the root. */}}
{{- define "bowline.access.writes" -}}
{{- $writes := list -}}
{{- range .Values.pluginAccess -}}
{{- range .rules -}}
{{- if ne (include "bowline.access.operations" .verbs) "[]" -}}
{{- $writes = append $writes . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $writes -}}
{{- end }}

{{/*
Whether a write is one that the rule declares, as CEL: its operation, namespace, name and label. A rule for all namespaces
never includes the cluster's own and the release's. Takes dict "root" and "rule".
*/}}
{{- define "bowline.cel.declaredWrite" -}}
{{- $never := list "kube-system" "kube-public" "kube-node-lease" .root.Release.Namespace -}}
(request.operation in {{ include "bowline.access.operations" .rule.verbs }}
{{- if .rule.namespace }}
&& request.namespace == {{ squote .rule.namespace }}
{{- else }}
&& !(request.namespace in {{ toJson $never }})
{{- end }}
{{- range $side, $without := dict "object" "DELETE" "oldObject" "CREATE" }}
{{- with $.rule.namePrefix }}
&& (request.operation == '{{ $without }}' || (has({{ $side }}.metadata.name) && {{ $side }}.metadata.name.startsWith({{ squote . }})))
{{- end }}
{{- with $.rule.names }}
&& (request.operation == '{{ $without }}' || (has({{ $side }}.metadata.name) && {{ $side }}.metadata.name in {{ toJson . }}))
{{- end }}
{{- with $.rule.label }}
&& (request.operation == '{{ $without }}' || (has({{ $side }}.metadata.labels) && {{ squote . }} in {{ $side }}.metadata.labels))
{{- end }}
{{- end -}}
)
{{- end }}

{{/*
A match condition that excepts the objects of plugins from a policy on the reconciler; nothing if no plugin writes such objects.
Takes dict "root", "group" and "resource".
*/}}
{{- define "bowline.policy.exceptPlugins" -}}
{{- $declared := list -}}
{{- range include "bowline.access.writes" .root | fromJsonArray -}}
{{- if and (eq .resource $.resource) (eq (.group | default "") $.group) -}}
{{- $declared = append $declared (include "bowline.cel.declaredWrite" (dict "root" $.root "rule" .)) -}}
{{- end -}}
{{- end -}}
{{- with $declared }}
- name: not-an-object-of-a-plugin
  expression: >-
    !({{ join " || " . | nindent 4 | trim }})
{{- end -}}
{{- end }}
