{{- define "costgov.labels" -}}
app.kubernetes.io/name: costgov
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "costgov.selector" -}}
app.kubernetes.io/name: costgov
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "costgov.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
