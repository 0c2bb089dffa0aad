{{/* The image: by digest, or by tag. */}}
{{- define "attendant.image" -}}
{{- $repository := required "image.repository is required, because there is no published image." .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" $repository .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $repository (.Values.image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.variant)) | quote }}
{{- end -}}
{{- end }}

{{/* The name changes with the options, so that a change rolls out new pods. */}}
{{- define "attendant.optionsName" -}}
attendant-{{ include "attendant.options" . | sha256sum | trunc 10 }}
{{- end }}

{{/* The options of the server: those of the manifests, then those in the values. */}}
{{- define "attendant.options" -}}
{{- $options := dict -}}
OPTIONS
