"""Build the Helm chart from the kustomization: `make chart`.

The templates are written from builds of deploy/overlays and deploy/components, so that every fact stands in the
manifests only. A component becomes a condition: what it adds or changes is found by comparing the builds with and
without it. deploy/chart has the values, which the tables below connect to the fields of the manifests.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parent
NAMESPACE = "release-namespace"
TOGGLES = {
    "gpu": 'eq .Values.variant "gpu"',
    "auth": ".Values.auth.enabled",
    "autoscaling-hpa": 'eq .Values.autoscaling.type "hpa"',
    "autoscaling-keda": 'eq .Values.autoscaling.type "keda"',
    "client-addresses": ".Values.clientAddresses.enabled",
    "gateway": ".Values.gateway.enabled",
    "ingress": ".Values.ingress.enabled",
    "model-pvc": ".Values.modelVolume.enabled",
    "monitoring": ".Values.monitoring.enabled",
    "service-mesh": ".Values.serviceMesh.enabled",
    "tls-cert-manager": ".Values.tls.enabled",
}
"""The condition of the GPU overlay and of each component, in the order of deploy/example."""
AUTOSCALERS = ("autoscaling-hpa", "autoscaling-keda")
"""Components that exclude each other."""
CONDITIONS = {
    "Namespace/": ".Values.namespace.create",
    "NetworkPolicy/": ".Values.networkPolicies.enabled",
    "PersistentVolumeClaim/attendant-artifacts": "not .Values.modelVolume.existingClaim",
    "Certificate/attendant": "not .Values.tls.existingSecret",
}
"""Additional conditions of objects, by the start of kind and name."""
POD = "Deployment/attendant spec.template"
CONTAINER = f"{POD}.spec.containers.0"
FIELDS = {
    "Deployment/attendant spec.replicas": ".Values.replicas",
    f"{POD}.spec.terminationGracePeriodSeconds": 'include "attendant.gracePeriod" .',
    f"{CONTAINER}.image": 'include "attendant.image" .',
    f"{CONTAINER}.imagePullPolicy": ".Values.image.pullPolicy",
    "HorizontalPodAutoscaler/attendant spec.minReplicas": ".Values.autoscaling.minReplicas",
    "HorizontalPodAutoscaler/attendant spec.maxReplicas": ".Values.autoscaling.maxReplicas",
    "ScaledObject/attendant spec.minReplicaCount": ".Values.autoscaling.minReplicas",
    "ScaledObject/attendant spec.maxReplicaCount": ".Values.autoscaling.maxReplicas",
    "ScaledObject/attendant spec.fallback.replicas": ".Values.autoscaling.minReplicas",
    "ScaledObject/attendant spec.triggers.0.metadata.serverAddress": ".Values.autoscaling.prometheus | quote",
    "PersistentVolumeClaim/attendant-artifacts spec.resources.requests.storage": ".Values.modelVolume.size | quote",
    "Certificate/attendant spec.issuerRef.name": ".Values.tls.issuer | quote",
    "Certificate/attendant spec.issuerRef.kind": ".Values.tls.issuerKind | quote",
    "Certificate/attendant spec.issuerRef.group": ".Values.tls.issuerGroup | quote",
    "NetworkPolicy/allow-monitoring spec.ingress.0.from.0.namespaceSelector.matchLabels.kubernetes.io/metadata.name": (
        ".Values.networkPolicies.monitoringNamespace | quote"
    ),
    **{
        f"{kind}/attendant spec.parentRefs.0.{field}": f".Values.gateway.{value} | quote"
        for kind in ("HTTPRoute", "GRPCRoute")
        for field, value in (("name", "name"), ("namespace", "namespace"), ("sectionName", "listener"))
    },
    "HTTPRoute/attendant spec.hostnames.0": 'include "attendant.host" (list . "rest")',
    "GRPCRoute/attendant spec.hostnames.0": 'include "attendant.host" (list . "grpc")',
    **{
        f"Ingress/attendant-{name} spec.{field}": value
        for name, host in (("http", "rest"), ("grpc", "grpc"))
        for field, value in (
            ("ingressClassName", ".Values.ingress.className | quote"),
            ("rules.0.host", f'include "attendant.host" (list . "{host}")'),
            ("tls.0.hosts.0", f'include "attendant.host" (list . "{host}")'),
            ("tls.0.secretName", ".Values.ingress.tlsSecret | quote"),
        )
    },
    f"{POD}.metadata.annotations.checksum/options": 'include "attendant.options" . | sha256sum',
    "ConfigMap/attendant-dashboard data.attendant.json": '.Files.Get "files/dashboard.json" | quote',
}
"""Fields whose value in the manifests is replaced with an expression."""
NAMES = {
    "attendant-api-keys": ".Values.auth.secret | quote",
    "attendant-artifacts": '.Values.modelVolume.existingClaim | default "attendant-artifacts" | quote',
    "attendant-server-tls": '.Values.tls.existingSecret | default "attendant-server-tls" | quote',
}
"""Names that are replaced with an expression wherever they occur."""
BLOCKS = {
    "ConfigMap/attendant data": 'include "attendant.options" .',
    f"{CONTAINER}.resources": 'include "attendant.resources" .',
    "NetworkPolicy/default-deny spec.podSelector": 'include "attendant.isolated" .',
    "NetworkPolicy/allow-dns spec.podSelector": 'include "attendant.isolated" .',
    "NetworkPolicy/allow-client-addresses spec.ingress.0.from": 'include "attendant.clientAddresses" .',
}
"""Fields whose value is a multi-line template."""
SAME_NAMES = (
    "tolerations", "nodeSelector", "affinity", "topologySpreadConstraints", "priorityClassName", "runtimeClassName",
    "initContainers",
)  # fmt: skip
"""Fields of the pod with a chart value of the same name."""
REPLACED = {
    **{f"{POD}.spec.{name}": name for name in SAME_NAMES},
    f"{POD}.spec.imagePullSecrets": "image.pullSecrets",
    f"{POD}.spec.securityContext": "podSecurityContext",
    f"{CONTAINER}.securityContext": "securityContext",
    "Service/attendant metadata.annotations": "service.annotations",
    "ServiceAccount/attendant metadata.annotations": "serviceAccount.annotations",
    "PersistentVolumeClaim/attendant-artifacts metadata.annotations": "modelVolume.annotations",
    "PersistentVolumeClaim/attendant-artifacts spec.storageClassName": "modelVolume.storageClassName",
    "PersistentVolumeClaim/attendant-artifacts spec.accessModes": "modelVolume.accessModes",
    "NetworkPolicy/allow-dns spec.egress.0.to": "networkPolicies.dns",
}
"""Fields that a nonempty chart value replaces. A field may be absent from the manifests."""
EXTENDED = {
    f"{POD}.metadata.annotations": "podAnnotations",
    f"{POD}.metadata.labels": "podLabels",
    f"{POD}.spec.volumes": "extraVolumes",
    f"{CONTAINER}.volumeMounts": "extraVolumeMounts",
    f"{CONTAINER}.env": "extraEnv",
    f"{CONTAINER}.envFrom": "extraEnvFrom",
    "Ingress/attendant-http metadata.annotations": "ingress.annotations",
    "Ingress/attendant-grpc metadata.annotations": "ingress.annotations",
    "NetworkPolicy/allow-dns spec.egress": "networkPolicies.extraEgress",
    "PodMonitor/attendant metadata.labels": "monitoring.labels",
    "PrometheusRule/attendant metadata.labels": "monitoring.labels",
}
"""Maps and lists that a chart value extends."""
UNAVAILABLE_OPTIONS = ("ATTENDANT_THREADS", "ATTENDANT_REST_PORT", "ATTENDANT_GRPC_PORT", "ATTENDANT_ADMIN_PORT")
"""Options that the manifests set elsewhere or whose values they repeat."""
REPLACEMENTS = {
    "autoscaling-keda": {
        "source": {"kind": "ScaledObject", "name": "attendant", "fieldPath": "metadata.namespace"},
        "targets": [
            {
                "select": {"kind": "ScaledObject", "name": "attendant"},
                "fieldPaths": ["spec.triggers.0.metadata.query"],
                "options": {"delimiter": '"', "index": 1},
            }
        ],
    },
    "tls-cert-manager": {
        "source": {"kind": "Certificate", "name": "attendant", "fieldPath": "metadata.namespace"},
        "targets": [
            {
                "select": {"kind": "Certificate", "name": "attendant"},
                "fieldPaths": [f"spec.dnsNames.{index}" for index in (1, 2, 3, 5, 6, 7)],
                "options": {"delimiter": ".", "index": 1},
            }
        ],
    },
}
"""Kustomize replacements that put another namespace into a component's strings, as in deploy/example."""

CHECKSUM = "checksum"
"""Placeholder for a digest of the options. A changed digest rolls out new pods."""

Json = Any
Variants = Sequence[tuple[str, Json]]
"""Conditions, each with the value if it holds."""


ABSENT = object()
"""Placeholder for the value of a field that is missing in a build."""


def main() -> int:
    """Build the chart in a directory."""
    parser = argparse.ArgumentParser(prog="make chart", description=__doc__)
    parser.add_argument("out", type=Path, help="directory of the chart, which is replaced")
    options = parser.parse_args()
    write_chart(DEPLOY, options.out)
    print(f"{options.out}: install it with helm upgrade --install attendant {options.out} --set image.repository=...")
    return 0


def write_chart(deploy: Path, out: Path) -> None:
    """Write the chart for the manifests in `deploy`."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(deploy / "chart", out)
    (out / "files").mkdir()
    shutil.copy(deploy / "components" / "monitoring" / "dashboard.json", out / "files")
    kustomization = yaml.safe_load((deploy / "overlays" / "cpu" / "kustomization.yaml").read_text())
    version = kustomization["images"][0]["newTag"].removesuffix("-cpu")
    names = re.findall(r"`(ATTENDANT_\w+)`", (deploy.parent / "docs" / "options.md").read_text())
    options = sorted({*names} - {*UNAVAILABLE_OPTIONS})
    templates = out / "templates"
    for path, old, new in (
        (out / "Chart.yaml", "VERSION", version),
        (out / "values.schema.json", '"OPTIONS"', json.dumps(options)),
        (templates / "_helpers.tpl", "DEFINITIONS\n", _definitions(deploy)),
    ):
        text = path.read_text()
        assert old in text, path
        path.write_text(text.replace(old, new))
    for file, text in _templates(deploy):
        with (templates / f"{file}.yaml").open("a") as stream:
            stream.write(text)


def build(deploy: Path, overlay: str, components: Iterable[str], namespace: str = NAMESPACE) -> list[dict[str, Json]]:
    """Return the objects of a kustomization, as a user would write it."""
    chosen = [name for name in TOGGLES if name in {*components} - {"gpu"}]
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.relpath(deploy.resolve(), os.path.realpath(folder))
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "namespace": namespace,
            "resources": [f"{root}/overlays/{overlay}"],
            "components": [f"{root}/components/{name}" for name in chosen],
            "replacements": [REPLACEMENTS[name] for name in chosen if name in REPLACEMENTS],
        }
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        result = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"chart: kubectl kustomize failed: {result.stderr.strip()}")
    return list(yaml.load_all(result.stdout, yaml.CSafeLoader))


@cache
def _build(deploy: Path, *toggles: str) -> dict[str, dict[str, Json]]:
    """Return the objects of the manifests, by kind and name, with the overlay and the components of `toggles`."""
    objects: dict[str, dict[str, Json]] = {}
    for item in build(deploy, "gpu" if "gpu" in toggles else "cpu", toggles):
        metadata = item["metadata"]
        if item["kind"] == "ConfigMap" and metadata["name"] != "attendant-dashboard":
            metadata["name"] = "attendant"  # without the hash
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]
            (container,) = pod["spec"]["containers"]
            (source,) = container["envFrom"]
            source["configMapRef"]["name"] = "attendant"
            pod["metadata"]["annotations"]["checksum/options"] = CHECKSUM
            del metadata["annotations"]  # annotation of a manifest checker
        objects[f"{item['kind']}/{metadata['name']}"] = item
    return objects


def _definitions(deploy: Path) -> str:
    """Return the templates of the server's options and of the resources."""
    deployments = [_build(deploy, *toggles)["Deployment/attendant"] for toggles in ((), ("gpu",))]
    containers = [item["spec"]["template"]["spec"]["containers"][0] for item in deployments]
    cpu, gpu = (json.dumps(json.dumps(container["resources"])) for container in containers)
    base = _build(deploy)["ConfigMap/attendant"]["data"]
    lines = ['{{- define "attendant.options" -}}', "{{- $options := dict -}}"]
    lines += [_set(*item) for item in base.items()]
    for toggle, condition in TOGGLES.items():
        options = _build(deploy, toggle)["ConfigMap/attendant"]["data"]
        if added := [_set(name, value) for name, value in options.items() if base.get(name) != value]:
            lines += [f"{{{{- if {condition} -}}}}", *added, "{{- end -}}"]
    lines += [
        "{{- range $name, $value := .Values.options -}}", "{{- if kindIs \"string\" $value -}}",
        "{{- $_ := set $options $name $value -}}", "{{- end -}}", "{{- end -}}",
        "{{- toYaml $options -}}", "{{- end }}", "",
        '{{- define "attendant.resources" -}}',
        f"{{{{- $cpu := fromJson {cpu} -}}}}", f"{{{{- $gpu := fromJson {gpu} -}}}}",
        '{{- toYaml (mergeOverwrite (ternary $gpu $cpu (eq .Values.variant "gpu")) (deepCopy .Values.resources)) -}}',
        "{{- end }}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _set(name: str, value: str) -> str:
    return f"{{{{- $_ := set $options {json.dumps(name)} {json.dumps(value)} -}}}}"


def _templates(deploy: Path) -> Iterator[tuple[str, str]]:
    """Yield the template of each object, and the name of its file."""
    base = _build(deploy)
    for name, item in base.items():
        variants = [(condition, _build(deploy, toggle).get(name)) for toggle, condition in TOGGLES.items()]
        yield item["kind"].lower(), _template(name, item, variants, [])
    for owner, own_condition in TOGGLES.items():
        others = [toggle for toggle in TOGGLES if toggle != owner and not {toggle, owner} <= {*AUTOSCALERS}]
        everything = _build(deploy, owner, *(toggle for toggle in others if toggle != AUTOSCALERS[0]))
        for name, item in _build(deploy, owner).items():
            if name not in base:
                changing = others if everything[name] != item else []
                variants = [(TOGGLES[toggle], _build(deploy, owner, toggle)[name]) for toggle in changing]
                yield owner, _template(name, item, variants, [own_condition])


def _template(name: str, item: dict[str, Json], variants: Variants, conditions: list[str]) -> str:
    conditions = [*conditions, *(further for start, further in CONDITIONS.items() if name.startswith(start))]
    lines = ["---", *_mapping(f"{name} ", item, variants)]
    for condition in reversed(conditions):
        lines = [f"{{{{- if {condition} }}}}", *lines, "{{- end }}"]
    lines = [line.replace("INDENT", str(len(line) - len(line.lstrip()))) for line in lines]
    return "\n".join(_merge_conditions(lines)) + "\n"


def _merge_conditions(lines: Iterable[str]) -> list[str]:
    """Merge neighboring blocks that have the same condition."""
    merged: list[str] = []
    opened: list[str] = []
    closed = None
    for line in lines:
        if line == closed:
            opened.append(line)
            merged.pop()
        else:
            if line.lstrip().startswith(("{{- if ", "{{- with ")):
                opened.append(line)
            merged.append(line)
        closed = None
        if line.lstrip() == "{{- else }}":
            opened[-1] = ""
        elif line.lstrip() == "{{- end }}":
            closed = opened.pop()
    return merged


class Expression(str):
    """A template expression."""

    __slots__ = ()


def _mapping(path: str, base: dict[str, Json], variants: Variants) -> list[str]:
    """Write a map. Fields that differ between variants are wrapped in conditions.

    A path is the name of an object, a space, and the keys and indices of a field, as in the tables above.
    """
    prefix = path if path.endswith(" ") else f"{path}."
    replaced = (name.removeprefix(prefix) for name in REPLACED if name.startswith(prefix))
    keys = dict.fromkeys(key for value in (base, *(value for _, value in variants)) for key in value)
    keys |= dict.fromkeys(key for key in replaced if "." not in key)
    lines = []
    for key in keys:
        values = [(condition, value.get(key, ABSENT)) for condition, value in variants]
        lines += _field(prefix + key, key, base.get(key, ABSENT), values)
    return lines + _extension(path)


def _field(path: str, key: str, base: Json, variants: Variants) -> list[str]:
    if (block := BLOCKS.get(path)) is not None:
        return [f"{key}:", f"  {{{{- {block} | nindent INDENT }}}}"]
    lines = _plain_field(path, key, base, variants)
    value = REPLACED.get(path)
    if value is None:
        return lines
    replaced = [f"{{{{- with .Values.{value} }}}}", f"{key}:", "  {{- toYaml . | nindent INDENT }}"]
    return [*replaced, *(["{{- else }}", *lines] if lines else []), "{{- end }}"]


def _plain_field(path: str, key: str, base: Json, variants: Variants) -> list[str]:
    if path in FIELDS:
        base = base if base is ABSENT else Expression(FIELDS[path])
        variants = [(condition, base if value is not ABSENT else value) for condition, value in variants]
    differing = [(condition, value) for condition, value in variants if value != base]
    removing = [condition for condition, value in differing if value is ABSENT]
    if removing:
        lines = _plain_field(path, key, base, [item for item in variants if item[1] is not ABSENT])
        return [f"{{{{- if not (or {_joined(removing)}) }}}}", *lines, "{{- end }}"]
    if base is ABSENT:
        if not differing:
            return []
        (_, first), *others = differing
        if any(value != first for _, value in others):
            raise SystemExit(f"chart: {path}: components add different values. Add the field to FIELDS.")
        condition = f"or {_joined(name for name, _ in differing)}" if others else differing[0][0]
        return [f"{{{{- if {condition} }}}}", *_value(path, key, first, []), "{{- end }}"]
    return _value(path, key, base, differing)


def _value(path: str, key: str, base: Json, variants: Variants) -> list[str]:
    if isinstance(base, dict) and base:
        return [f"{key}:", *_indented(_mapping(path, base, variants))]
    if isinstance(base, list) and base:
        return [f"{key}:", *_indented(_items(path, base, variants))]
    if isinstance(base, str) and "\n" in base:
        assert not variants
        mark = "|" if base.endswith("\n") else "|-"
        return [f"{key}: {mark}", *_indented(_dump(base).rstrip("\n").split("\n"))]
    text = _dump(base)
    if variants:
        branches = "".join(f"{{{{ if {condition} }}}}{_dump(value)}{{{{ else }}}}" for condition, value in variants)
        text = branches + text + "{{ end }}" * len(variants)
    return [f"{key}: {text}"]


def _items(path: str, base: list[Json], variants: Variants) -> list[str]:
    lines: list[str] = []
    extended = [] if all(len(value) == len(base) for _, value in variants) else variants
    for index, item in enumerate(base):
        items = [] if extended else [(condition, value[index]) for condition, value in variants]
        lines += _item(f"{path}.{index}", item, items)
    for condition, value in extended:
        added = [item for item in value if item not in base]
        assert len(added) + len(base) == len(value), f"{path}: not only added items"
        new = [line for item in added for line in _item(f"{path}.added", item, [])]
        lines += [f"{{{{- if {condition} }}}}", *new, "{{- end }}"]
    return lines + _extension(path)


def _item(path: str, item: Json, variants: Variants) -> list[str]:
    if not isinstance(item, dict):
        field = FIELDS.get(path)
        return [f"- {_dump(item if field is None else Expression(field))}"]
    first, *rest = _mapping(path, item, variants)
    if first.startswith("{{"):
        return ["-", *_indented([first, *rest])]
    return [f"- {first}", *_indented(rest)]


def _extension(path: str) -> list[str]:
    """Write the template that adds chart values to a map or list."""
    lines = ['{{- include "attendant.labels" . | nindent INDENT }}'] if path.endswith(" metadata.labels") else []
    if (value := EXTENDED.get(path)) is not None:
        lines += [f"{{{{- with .Values.{value} }}}}", "{{- toYaml . | nindent INDENT }}", "{{- end }}"]
    return lines


def _dump(value: Json) -> str:
    """Return a value as one line of YAML, or a multi-line text verbatim, with template syntax escaped."""
    if isinstance(value, str):
        value = Expression(NAMES[value]) if value in NAMES else value
    if isinstance(value, Expression):
        return f"{{{{ {value} }}}}"
    if isinstance(value, str) and "\n" in value:
        text = value
    elif isinstance(value, str):
        text = yaml.safe_dump(value, width=sys.maxsize, allow_unicode=True).removesuffix("\n").removesuffix("\n...")
    else:
        text = json.dumps(value)
    return text.replace("{{", '{{ "{{" }}').replace(NAMESPACE, "{{ .Release.Namespace }}")


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _joined(conditions: Iterable[str]) -> str:
    return " ".join(f"({condition})" for condition in conditions)


if __name__ == "__main__":
    sys.exit(main())
