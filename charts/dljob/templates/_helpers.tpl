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

{{- define "dljob.testSelector" -}}
app.kubernetes.io/name: {{ include "dljob.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: test
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

{{- /* Tells of other releases for the whole cluster, found by their ClusterRoleBindings: which acts, and whether the token keys differ. */ -}}
{{- define "dljob.otherReleases" -}}
{{- $release := printf "%s %s" .Release.Namespace (include "dljob.fullname" .) -}}
{{- $ours := (lookup "v1" "Secret" .Release.Namespace (include "dljob.tokenSecret" .)).data | default dict -}}
{{- if eq .Values.rbac.scope "Cluster" -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRoleBinding" "" "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- $subject := first (.subjects | default (list dict)) }}
{{- $installed := and (eq (index $labels "app.kubernetes.io/component" | default "") "operator") (hasPrefix "dljob-" (index $labels "helm.sh/chart" | default "")) }}
{{- if and $installed $subject.namespace (ne $release (printf "%s %s" $subject.namespace .metadata.name)) }}

Warning: the release {{ .metadata.name }} in namespace {{ $subject.namespace }} serves every namespace, too: of the two, the one that acts already goes on, and the other stands by.
{{- $theirs := dict }}
{{- range (lookup "apps/v1" "Deployment" $subject.namespace .metadata.name | dig "spec" "template" "spec" "volumes" list) }}
{{- if eq .name "token-key" }}
{{- $theirs = (lookup "v1" "Secret" $subject.namespace .secret.secretName).data | default dict }}
{{- end }}
{{- end }}
{{- if ne (join " " (values $ours | sortAlpha)) (join " " (values $theirs | sortAlpha)) }}
Their token keys differ, so neither takes over the other's jobs while both are installed: set tokenKey.existingSecret of both to a Secret with one key, or uninstall one.
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
{{- end }}

{{- /* The namespaces served, as a JSON list; empty: all. */ -}}
{{- define "dljob.namespaces" -}}
{{- if eq .Values.rbac.scope "Cluster" -}}
[]
{{- else -}}
{{ .Values.watchNamespaces | default (list .Release.Namespace) | uniq | sortAlpha | toJson }}
{{- end -}}
{{- end }}

{{- /* The selector of the namespaces served, as kubectl writes it; empty: all, or the scope is not the cluster. */ -}}
{{- define "dljob.selectorText" -}}
{{- $parts := list -}}
{{- if eq .Values.rbac.scope "Cluster" -}}
{{- range $key, $value := .Values.namespaceSelector.matchLabels }}
{{- $parts = append $parts (printf "%s=%s" $key $value) }}
{{- end }}
{{- range .Values.namespaceSelector.matchExpressions }}
{{- if has .operator (list "In" "NotIn") }}
{{- $parts = append $parts (printf "%s %s (%s)" .key (lower .operator) (join "," .values)) }}
{{- else }}
{{- $parts = append $parts (printf "%s%s" (ternary "" "!" (eq .operator "Exists")) .key) }}
{{- end }}
{{- end }}
{{- end -}}
{{ join "," $parts }}
{{- end }}

{{- /* The same in CEL, about a map `labels`. */ -}}
{{- define "dljob.selectorCel" -}}
{{- $parts := list -}}
{{- range $key, $value := .Values.namespaceSelector.matchLabels }}
{{- $parts = append $parts (printf "(%q in variables.labels && variables.labels[%q] == %q)" $key $key $value) }}
{{- end }}
{{- range .Values.namespaceSelector.matchExpressions }}
{{- $there := printf "%q in variables.labels" .key }}
{{- $one := printf "%s && variables.labels[%q] in %s" $there .key (toJson (.values | default list)) }}
{{- $parts = append $parts (get (dict "In" (printf "(%s)" $one) "NotIn" (printf "!(%s)" $one) "Exists" (printf "(%s)" $there) "DoesNotExist" (printf "!(%s)" $there)) .operator) }}
{{- end -}}
{{ join " && " $parts }}
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

{{- define "dljob.webhook" -}}
{{ include "dljob.fullname" . | trunc 42 | trimSuffix "-" }}-webhook
{{- end }}

{{- define "dljob.webhookSecret" -}}
{{ .Values.webhook.existingSecret | default (include "dljob.webhook" .) }}
{{- end }}

{{- /* Makes the certificate once in a rendering, as .Values.webhook.made: crt, key, ca, and bundle, which has the last CA too. */ -}}
{{- define "dljob.webhookCertificate" -}}
{{- if not (hasKey .Values.webhook "made") -}}
{{- $name := include "dljob.webhook" . -}}
{{- $host := printf "%s.%s.svc" $name .Release.Namespace -}}
{{- $days := int .Values.webhook.certificateDays -}}
{{- $ca := genCA "dljob-webhook-ca" $days -}}
{{- $made := genSignedCert "dljob-webhook" nil (list $host (printf "%s.cluster.local" $host)) $days $ca -}}
{{- /* Pods of before serve the last certificate until they are replaced. */ -}}
{{- $old := index ((lookup "v1" "Secret" .Release.Namespace $name).data | default dict) "ca.crt" | default "" | b64dec -}}
{{- $_ := set .Values.webhook "made" (dict "crt" $made.Cert "key" $made.Key "ca" $ca.Cert "bundle" (printf "%s%s" $ca.Cert $old)) -}}
{{- end -}}
{{- end }}

{{- /* Refuses values that no schema can hold against each other. */ -}}
{{- define "dljob.check" -}}
{{- $lease := trimSuffix "s" .Values.leaderElection.leaseDuration | float64 -}}
{{- $retry := trimSuffix "s" .Values.leaderElection.retryPeriod | float64 -}}
{{- if gt (mulf 3 $retry) $lease -}}
{{- fail (printf "leaderElection.retryPeriod=%s is more than a third of leaderElection.leaseDuration=%s: the Lease must be renewed three times while it lasts" .Values.leaderElection.retryPeriod .Values.leaderElection.leaseDuration) -}}
{{- end -}}
{{- if and .Values.webhook.enabled .Values.webhook.existingSecret (not .Values.webhook.caBundle) (not .Values.webhook.annotations) -}}
{{- fail "webhook.existingSecret needs webhook.caBundle: the API server must know who signed its certificate" -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- $name := .name -}}
{{- $there := list -}}
{{- range $.Values.extraVolumes -}}
{{- $there = append $there .name -}}
{{- end -}}
{{- if not (has $name $there) -}}
{{- fail (printf "extraVolumeMounts mounts %s, which is none of extraVolumes: %s" $name (join ", " $there | default "there are none")) -}}
{{- end -}}
{{- end -}}
{{- $taken := dict -}}
{{- $ports := dict "health.port" .Values.health.port "metrics.port" .Values.metrics.port -}}
{{- if .Values.webhook.enabled -}}
{{- $_ := set $ports "webhook.port" .Values.webhook.port -}}
{{- end -}}
{{- range $name, $port := $ports -}}
{{- $text := toString (int $port) -}}
{{- if hasKey $taken $text -}}
{{- fail (printf "%s and %s are both %s: each needs a port of its own" (get $taken $text) $name $text) -}}
{{- end -}}
{{- $_ := set $taken $text $name -}}
{{- end -}}
{{- end }}
