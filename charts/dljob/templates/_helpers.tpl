{{- define "dljob.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "dljob.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "dljob.name" .) .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "dljob.name" .) | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "dljob.selector" -}}
app.kubernetes.io/name: {{ include "dljob.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "dljob.labels" -}}
{{ include "dljob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "dljob.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "dljob.fullname" .) }}
{{- end }}

{{- define "dljob.registry" -}}
{{ with .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- end }}

{{- define "dljob.image" -}}
{{ include "dljob.registry" . }}{{ .Values.image.repository }}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "dljob.jobImage" -}}
{{ .Values.jobs.image | default (printf "%sdljob/runtime:%s" (include "dljob.registry" .) .Chart.AppVersion) }}
{{- end }}

{{- define "dljob.initImage" -}}
{{ if .Values.jobs.init.enabled }}{{ .Values.jobs.init.image | default (include "dljob.image" .) }}{{ end }}
{{- end }}

{{- define "dljob.tokenSecret" -}}
{{ .Values.tokenKey.existingSecret | default (printf "%s-token-key" (include "dljob.fullname" .)) }}
{{- end }}

{{- /* The namespaces served, as a JSON list; empty: all. */ -}}
{{- define "dljob.namespaces" -}}
{{- if eq .Values.rbac.scope "Cluster" -}}
[]
{{- else -}}
{{ .Values.watchNamespaces | default (list .Release.Namespace) | uniq | sortAlpha | toJson }}
{{- end -}}
{{- end }}

{{- /* Rules of files/rights.yaml: a dict of the context and `scope`: empty, Cluster or Release. */ -}}
{{- define "dljob.rules" -}}
{{- $scope := .scope -}}
{{- $served := .context.Values.rbac.scope -}}
{{- $name := include "dljob.fullname" .context -}}
{{- range .context.Files.Get "files/rights.yaml" | fromYamlArray }}
{{- if and (eq $scope (.scope | default "")) (eq $served (.only | default $served)) }}
- apiGroups: {{ .apiGroups | toJson }}
  resources: {{ .resources | toJson }}
  verbs: {{ keys .verbs | sortAlpha | toJson }}
  {{- with .resourceNames }}
  resourceNames: {{ . | toJson | replace "{release}" $name }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
