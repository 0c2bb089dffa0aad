{{/* The image: by digest, or by tag. */}}
{{- define "attendant.image" -}}
{{- $repository := required "image.repository is required, because there is no published image." .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" $repository .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $repository (.Values.image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.variant)) | quote }}
{{- end -}}
{{- end }}

{{/* Labels of every object, besides those of the manifests. */}}
{{- define "attendant.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A host name of gateway or ingress: (list . "rest") or (list . "grpc"). */}}
{{- define "attendant.host" -}}
{{- $name := index . 1 -}}
{{- required (printf "hosts.%s is required with gateway or ingress." $name) (get (index . 0).Values.hosts $name) | quote -}}
{{- end }}

{{/* The pods to which the policies apply that deny everything else. */}}
{{- define "attendant.isolated" -}}
{{- if .Values.networkPolicies.wholeNamespace -}}
{}
{{- else -}}
matchLabels:
  app.kubernetes.io/component: server
  app.kubernetes.io/name: attendant
{{- end -}}
{{- end }}

{{- define "attendant.clientAddresses" -}}
{{- if not .Values.clientAddresses.from -}}
{{- fail "clientAddresses.from is required, such as [{ipBlock: {cidr: 10.20.0.0/16}}]." -}}
{{- end -}}
{{- toYaml .Values.clientAddresses.from -}}
{{- end }}

{{/* Seconds from SIGTERM to SIGKILL: the drain, and a margin of 5 s. */}}
{{- define "attendant.gracePeriod" -}}
{{- $options := include "attendant.options" . | fromYaml -}}
{{- div (add (int (get $options "ATTENDANT_DRAIN_TIMEOUT_MS")) 5999) 1000 -}}
{{- end }}

{{/* The options of the server: those of the manifests, then those in the values. And resources, in the same order. */}}
DEFINITIONS
