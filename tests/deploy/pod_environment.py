"""The environment variables that the kubelet sets in one of the Deployment's pods."""

from typing import Any

from tests.deploy.builds import Combination, Object, build, parse

KUBERNETES = {"metadata": {"name": "kubernetes"}, "spec": {"ports": [{"name": "https", "port": 443}]}}
CLUSTER_IP = "10.96.0.1"
POD_NAME = "attendant-7d9f8b6c5d-x2x4z"


class Manifest:
    """Objects of an overlay."""

    def __init__(self, overlay: str) -> None:
        self._objects = parse(build(Combination(overlay)))

    @property
    def pod(self) -> Object:
        """The server's pod template."""
        spec: Object = self._of_kind("Deployment")[0]["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        container: Object = self.pod["containers"][0]
        return container

    def environment(self) -> dict[str, str]:
        """Return a pod's variables, including the service links it would get without enableServiceLinks."""
        environment = {"HOSTNAME": POD_NAME, "HOME": "/"}
        for service in [KUBERNETES, *self._of_kind("Service")]:
            environment |= service_links(service)
        for source in self.container["envFrom"]:
            environment |= self._config_map(source["configMapRef"]["name"])
        for variable in self.container["env"]:
            environment[variable["name"]] = self._value(variable)
        return environment

    def _value(self, variable: dict[str, Any]) -> str:
        if "value" in variable:
            return str(variable["value"])
        reference = variable["valueFrom"]["resourceFieldRef"]
        kind, resource = reference["resource"].split(".")
        assert reference["divisor"] == "1"
        return str(int(self.container["resources"][kind][resource]))

    def _config_map(self, name: str) -> dict[str, str]:
        (data,) = (item["data"] for item in self._of_kind("ConfigMap") if item["metadata"]["name"] == name)
        return dict(data)

    def _of_kind(self, kind: str) -> list[Object]:
        return [item for item in self._objects if item["kind"] == kind]


def service_links(service: Object) -> dict[str, str]:
    """Return a Service's variables, including those in the format of Docker links."""
    name = service["metadata"]["name"].upper().replace("-", "_")
    ports = service["spec"]["ports"]
    first = f"tcp://{CLUSTER_IP}:{ports[0]['port']}"
    links = {f"{name}_SERVICE_HOST": CLUSTER_IP, f"{name}_SERVICE_PORT": str(ports[0]["port"]), f"{name}_PORT": first}
    for port in ports:
        number = str(port["port"])
        prefix = f"{name}_PORT_{number}_TCP"
        links |= {
            f"{name}_SERVICE_PORT_{port['name'].upper()}": number,
            prefix: f"tcp://{CLUSTER_IP}:{number}",
            f"{prefix}_PROTO": "tcp",
            f"{prefix}_PORT": number,
            f"{prefix}_ADDR": CLUSTER_IP,
        }
    return links
