"""Rules for Services, routes, network policies and scrape targets."""

from collections.abc import Iterator

from tests.deploy.builds import Object
from tests.deploy.manifests import Manifests, items, matches, object_name, rule

APP_PROTOCOLS = {"http": "http", "grpc": "kubernetes.io/h2c"}
TLS_APP_PROTOCOLS = {"http": "https", "grpc": "https"}
MESH_PORTS = {15008, 4143}
"""Ports of the proxies of Istio and Linkerd, which the pods do not declare."""
CONTROL_PLANE_PORTS = {"istio-system": {15012}, "linkerd": {8080, 8086, 8090}}
ROUTES = {"HTTPRoute": "http", "GRPCRoute": "grpc"}


@rule
def services_select_pods(manifests: Manifests) -> Iterator[str]:
    for service in manifests.of_kind("Service"):
        if not service["spec"].get("selector") or not manifests.selected({"matchLabels": service["spec"]["selector"]}):
            yield f"{object_name(service)}: no pods"


@rule
def services_target_named_ports(manifests: Manifests) -> Iterator[str]:
    for service in manifests.of_kind("Service"):
        for workload in manifests.selected({"matchLabels": service["spec"].get("selector", {})}):
            protocols = TLS_APP_PROTOCOLS if manifests.uses_tls(workload) else APP_PROTOCOLS
            for port in service["spec"]["ports"]:
                if port.get("targetPort") not in workload.ports:
                    yield f"{object_name(service)}: {workload.name} has no port {port.get('targetPort')}"
                if port.get("appProtocol") != protocols.get(port.get("name")):
                    yield f"{object_name(service)}: the name or protocol of port {port['port']} is wrong"


@rule
def services_are_internal(manifests: Manifests) -> Iterator[str]:
    for service in manifests.of_kind("Service"):
        spec = service["spec"]
        if spec.get("type", "ClusterIP") != "ClusterIP" or {"externalIPs", "externalName"} & set(spec):
            yield f"{object_name(service)}: reachable from outside the cluster"
        if any(port.get("targetPort") in ("admin", 8082) for port in spec["ports"]):
            yield f"{object_name(service)}: exposes the admin port, which requires no key"


@rule
def grpc_clients_find_all_pods(manifests: Manifests) -> Iterator[str]:
    headless = [item for item in manifests.of_kind("Service") if item["spec"].get("clusterIP") == "None"]
    if [[port["name"] for port in item["spec"]["ports"]] for item in headless] != [["grpc"]]:
        yield "not exactly one headless service, for gRPC"
    if any(item["spec"].get("publishNotReadyAddresses") for item in headless):
        yield "the headless service returns pods that are not ready"


@rule
def ports_are_named_and_unprivileged(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        ports = [port for item in workload.containers for port in items(item.get("ports"))]
        if len({port.get("name") for port in ports} - {None}) != len(ports):
            yield f"{workload.name}: a port has no name of its own"
        if any(port["containerPort"] < 1024 for port in ports):
            yield f"{workload.name}: a port below 1024 requires a capability"


@rule
def ingresses_reach_services(manifests: Manifests) -> Iterator[str]:
    for ingress in manifests.of_kind("Ingress"):
        protocol = ingress["metadata"].get("annotations", {}).get("nginx.ingress.kubernetes.io/backend-protocol")
        grpc = protocol in ("GRPC", "GRPCS")
        if (protocol in ("HTTPS", "GRPCS")) != any(map(manifests.uses_tls, manifests.deployments)):
            yield f"{object_name(ingress)}: the server expects TLS or no TLS, unlike {protocol}"
        for route in ingress["spec"]["rules"]:
            for path in route["http"]["paths"]:
                backend = path["backend"]["service"]
                port = backend["port"].get("name")
                if find_port(manifests, backend["name"], "name", port) is None:
                    yield f"{object_name(ingress)}: Service {backend['name']} has no port {port}"
                if grpc != (port == "grpc"):
                    yield f"{object_name(ingress)}: the protocol does not match port {port}"


@rule
def ingresses_use_tls(manifests: Manifests) -> Iterator[str]:
    for ingress in manifests.of_kind("Ingress"):
        encrypted = {host for tls in items(ingress["spec"].get("tls")) for host in items(tls.get("hosts"))}
        if {route.get("host") for route in ingress["spec"]["rules"]} != encrypted:
            yield f"{object_name(ingress)}: a host without TLS"
        if not ingress["spec"].get("ingressClassName"):
            yield f"{object_name(ingress)}: no class"


@rule
def routes_reach_services(manifests: Manifests) -> Iterator[str]:
    for route in manifests.of_kind(*ROUTES):
        if not items(route["spec"].get("parentRefs")) or not items(route["spec"].get("hostnames")):
            yield f"{object_name(route)}: no Gateway or no host name"
        if any(parent.get("sectionName") != "https" for parent in items(route["spec"].get("parentRefs"))):
            yield f"{object_name(route)}: not only the HTTPS listener"
        for backend in [backend for item in route["spec"]["rules"] for backend in item["backendRefs"]]:
            port = find_port(manifests, backend["name"], "port", backend.get("port"))
            if port is None or port["name"] != ROUTES[route["kind"]]:
                yield f"{object_name(route)}: {backend} is not a port of a Service with this protocol"


def find_port(manifests: Manifests, service: str, field: str, value: object) -> Object | None:
    """Return a Service's port by name or number."""
    item = manifests.find("Service", service)
    ports: list[Object] = item["spec"]["ports"] if item else []
    return next((port for port in ports if port.get(field) == value), None)


@rule
def traffic_is_denied_by_default(manifests: Manifests) -> Iterator[str]:
    denied = {
        direction
        for policy in manifests.of_kind("NetworkPolicy")
        if policy["spec"]["podSelector"] == {} and not {"ingress", "egress"} & set(policy["spec"])
        for direction in policy["spec"].get("policyTypes", [])
    }
    if denied != {"Ingress", "Egress"}:
        yield f"denied by default: {sorted(denied)}"


@rule
def policies_admit_known_peers(manifests: Manifests) -> Iterator[str]:
    admitted: set[str] = set()
    for policy in manifests.of_kind("NetworkPolicy"):
        pods = manifests.selected(policy["spec"]["podSelector"])
        if not pods:
            yield f"{object_name(policy)}: no pods"
        for allowed in items(policy["spec"].get("ingress")):
            names = {port["port"] for port in items(allowed.get("ports"))}
            names -= MESH_PORTS
            if not allowed.get("from") or any(peer.get("namespaceSelector") == {} for peer in allowed["from"]):
                yield f"{object_name(policy)}: admits every namespace"
            if any(peer.get("ipBlock", {}).get("cidr", "").endswith("/0") for peer in items(allowed.get("from"))):
                yield f"{object_name(policy)}: admits every address"
            if not allowed.get("ports") or any(names - set(workload.ports) for workload in pods):
                yield f"{object_name(policy)}: the pods do not have the ports {names}"
            if any("namespaceSelector" in peer for peer in items(allowed.get("from"))):
                admitted |= names
    for workload in manifests.deployments:
        if admitted != set(workload.ports):
            yield f"{workload.name}: ports without clients {sorted(set(workload.ports) - admitted)}"


@rule
def servers_connect_to_nothing_but_dns(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        allowed = {53} if workload in manifests.deployments else {53, 443}
        for policy in manifests.of_kind("NetworkPolicy"):
            if not matches(policy["spec"]["podSelector"], workload.labels):
                continue
            for egress in items(policy["spec"].get("egress")):
                ports = {port["port"] for port in items(egress.get("ports"))}
                for peer in items(egress.get("to")):
                    namespace = peer.get("namespaceSelector", {}).get("matchLabels", {})
                    ports -= CONTROL_PLANE_PORTS.get(namespace.get("kubernetes.io/metadata.name", ""), set())
                if not egress.get("ports") or not ports <= allowed or not egress.get("to"):
                    yield f"{object_name(policy)}: {workload.name} may connect to ports {sorted(ports)}"


@rule
def scrapes_use_the_protocol_of_the_server(manifests: Manifests) -> Iterator[str]:
    for monitor in manifests.of_kind("PodMonitor"):
        for workload in manifests.selected(monitor["spec"]["selector"]):
            if workload not in manifests.deployments:
                continue
            for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                if (endpoint.get("scheme", "http") == "https") != manifests.uses_tls(workload):
                    yield f"{object_name(monitor)}: scrapes with another protocol than {workload.name}"
                if endpoint.get("tlsConfig", {}).get("insecureSkipVerify"):
                    yield f"{object_name(monitor)}: does not verify certificates"


@rule
def scrape_targets_exist(manifests: Manifests) -> Iterator[str]:
    for monitor in manifests.of_kind("PodMonitor"):
        ports = {name for workload in manifests.selected(monitor["spec"]["selector"]) for name in workload.ports}
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint.get("port") not in ports:
                yield f"{object_name(monitor)}: no pod has the port {endpoint.get('port')}"
