"""The gRPC server: all services, health checks and reflection on one port."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from service.auth import PUBLIC, Access
from service.config import MAX_NUMBER, Settings
from service.lifecycle import Lifecycle
from service.memory import MemoryBudget
from service.metrics import Metrics
from service.oip.models import NAME as OIP_API
from service.process import start_task
from service.request_log import RequestLog
from service.rpc import inference, tei
from service.rpc.interceptor import Interceptor, Method
from service.rpc.messages import IDS_LAYOUT, INFER_LAYOUT, NO_LAYOUT, PROTO, REQUEST_LAYOUT, STREAM_LAYOUT
from service.rpc.receiving import HEADROOM, Receiver, RpcConnections, parse_peer
from service.rpc.servicer import SERVICE, EncoderServicer
from service.spelling import join
from service.tei import NAME as TEI_API
from service.tls import Credentials, Tls

REFLECTION_V1 = "grpc.reflection.v1.ServerReflection"
"""grpcio serves only v1alpha. The v1 messages are identical on the wire, so the servicer can serve both."""
MAX_METADATA_BYTES = 16 * 1024
MIN_PING_INTERVAL_MS = 10_000
"""gRPC's default of 5 minutes would disconnect clients that detect lost servers with keepalive pings."""
SERVICES = tuple(service.full_name for service in (SERVICE, inference.SERVICE, *tei.SERVICES.values()))
ENCODER_METHODS = [
    Method(
        f"/{SERVICE.full_name}/{method.name}",
        layout=STREAM_LAYOUT if method.client_streaming else REQUEST_LAYOUT,
        spelling=PROTO,
    )
    for method in SERVICE.methods
]
INFERENCE_METHODS = [
    Method(
        f"/{inference.SERVICE.full_name}/{method.name}",
        OIP_API,
        INFER_LAYOUT,
        is_probe=method.name in inference.PROBES,
        needs_admin=method.name in inference.ADMIN_METHODS,
    )
    for method in inference.SERVICE.methods
]
TEI_METHODS = [
    Method(
        f"/{service.full_name}/{method.name}",
        TEI_API,
        IDS_LAYOUT if method.name.startswith("Decode") else NO_LAYOUT,
        spelling=tei.TEI_RPC,
    )
    for service in tei.SERVICES.values()
    for method in service.methods
]
METHODS = (*ENCODER_METHODS, *INFERENCE_METHODS, *TEI_METHODS)


class RpcServer:
    """The gRPC server. Construct it on the event loop. Health is NOT_SERVING until `set_serving`."""

    def __init__(  # noqa: PLR0913  # the parts of the application
        self,
        lifecycle: Lifecycle,
        settings: Settings,
        metrics: Metrics,
        access: Access = PUBLIC,
        budget: MemoryBudget | None = None,
        requests: RequestLog | None = None,
        *,
        shares_port: bool = False,
    ) -> None:
        """`shares_port`: whether other workers listen on the same port."""
        for method in METHODS:
            if not method.is_probe:
                metrics.create_requests(method.api, [method.name])
        requests = requests or RequestLog.of(settings, metrics)
        self._connections = RpcConnections(settings, requests)
        self._watch: asyncio.Task[None] | None = None
        metrics.grpc_connections.set_function(lambda: len(self._connections))
        budget = budget or MemoryBudget(settings.max_pending_request_bytes, "request bodies")
        receiver = Receiver(settings, budget, self._connections.bytes_received)
        # gRPC adds +/-10% jitter to the age of each connection. Unless a grace period is set, calls in progress may
        # run forever.
        age = settings.max_grpc_connection_age_ms
        connections = int(HEADROOM * settings.worker_connections)
        self._server = grpc.aio.server(
            interceptors=[Interceptor(requests, access, receiver, METHODS, self._connections)],
            options=[
                *([("grpc.max_connection_age_ms", age)] if age else []),
                # Above the soft limit, 8 KiB by default, gRPC rejects some of the calls.
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.max_receive_message_length", settings.max_grpc_message_bytes),
                ("grpc.max_allowed_incoming_connections", min(connections, MAX_NUMBER - 1)),
                ("grpc.max_concurrent_streams", settings.max_grpc_streams),
                # Maximum number of finished calls not yet freed. With the default of 100, gRPC rejects calls even if a
                # client respects the limit of concurrent calls: 500 of 1,000 calls that grpc-go started at the same
                # time.
                ("grpc.http2.max_deallocating_streams", settings.max_grpc_streams),
                ("grpc.max_send_message_length", min(settings.max_response_bytes * 2, MAX_NUMBER)),
                ("grpc.so_reuseport", int(shares_port)),
                ("grpc.server_handshake_timeout_ms", settings.header_timeout_ms),
                ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
            ],
        )
        tei_methods = tei.TeiServicer(lifecycle).methods
        handlers = (
            make_handler(SERVICE, EncoderServicer(lifecycle, requests).methods),
            make_handler(inference.SERVICE, inference.InferenceServicer(lifecycle, metrics, requests).methods),
            *(make_handler(service, tei_methods) for service in tei.SERVICES.values()),
        )
        self._server.add_generic_rpc_handlers(handlers)
        self._health = HealthServicer(self._connections)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        _enable_reflection(self._server)

    async def start(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Listen on `host:port`, IPv6 in brackets, and return the port; raises OSError if it cannot be bound.

        `credentials`: None serves without encryption.
        """
        try:
            port: int = (
                self._server.add_insecure_port(address)
                if credentials is None
                else self._server.add_secure_port(address, credentials)
            )
        except RuntimeError:
            raise OSError(f"{address} is in use or not a local address") from None
        await self.set_serving(False)
        await self._server.start()
        self._watch = start_task(self._connections.watch(port))
        return port

    async def set_serving(self, serving: bool) -> None:
        """Set the health status of the server as a whole and of each service."""
        status = health_pb2.HealthCheckResponse
        for service in ("", *SERVICES):
            await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

    async def set_not_serving(self) -> None:
        """Set the health status to NOT_SERVING permanently."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Accept no new calls; cancel those that run longer than `grace_s`."""
        self._health.stop()
        await self._server.stop(grace_s)
        if self._watch is not None:
            self._watch.cancel()


class HealthServicer(health.aio.HealthServicer):  # type: ignore[misc]  # untyped base
    """grpcio's servicer, but Watch streams end when the drain starts; if opened later, when the server stops.

    The client immediately opens a new stream. From this server, it gets NOT_SERVING; behind a proxy, it gets another
    server's status. A stream left open would report NOT_SERVING for all servers behind the proxy.
    """

    def __init__(self, connections: RpcConnections) -> None:
        super().__init__()
        self._connections = connections
        self._draining = asyncio.Event()
        self._stopping = asyncio.Event()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """Send the health status and its changes."""
        self._connections.note_probe(parse_peer(context.peer()))
        end = self._stopping if self._draining.is_set() else self._draining
        watch = asyncio.create_task(super().Watch(request, context))
        ended = asyncio.create_task(end.wait())
        try:
            done, _ = await asyncio.wait((watch, ended), return_when=asyncio.FIRST_COMPLETED)
            if watch in done:
                await watch  # raises its error
        finally:
            watch.cancel()
            ended.cancel()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> health_pb2.HealthCheckResponse:
        """Return the health status. grpcio's error for an unknown service has no message."""
        self._connections.note_probe(parse_peer(context.peer()))
        if request.service not in self._server_status:
            names = join([f'"{name}"' for name in self._server_status if name], "or")
            message = f"service: not found. Use {names}, or leave it empty for the server as a whole."
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        return await super().Check(request, context)

    async def List(self, request: health_pb2.HealthListRequest, context: Any) -> health_pb2.HealthListResponse:
        """Return the health status of the server as a whole, named "", and of each service."""
        self._connections.note_probe(parse_peer(context.peer()))
        statuses = {name: health_pb2.HealthCheckResponse(status=status) for name, status in self._server_status.items()}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def enter_graceful_shutdown(self) -> None:
        """Set all statuses to NOT_SERVING permanently."""
        await super().enter_graceful_shutdown()
        self._draining.set()

    def stop(self) -> None:
        """End all Watch streams."""
        self._stopping.set()


def _describe_reflection_v1() -> None:
    """Add the v1 descriptor to the default pool, which the servicer reads.

    grpcio-reflection ships only the descriptor of v1alpha, whose messages belong to another package. Clients such as
    grpc-requests request the descriptor of every listed service.
    """
    old, new = (name.rpartition(".")[0] for name in (reflection.SERVICE_NAME, REFLECTION_V1))
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file = text_format.Parse(str(file).replace(old, new), FileDescriptorProto())
    file.name = f"{new.replace('.', '/')}/reflection.proto"
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


def _enable_reflection(server: grpc.aio.Server) -> None:
    """Serve reflection under v1 and v1alpha."""
    _describe_reflection_v1()
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME, REFLECTION_V1)
    servicer = reflection.aio.ReflectionServicer(names)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler(REFLECTION_V1, {"ServerReflectionInfo": handler})
    server.add_generic_rpc_handlers((service,))


def make_handler(service: ServiceDescriptor, methods: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the handler of all methods of a service, by their names in the proto."""
    handlers = {}
    for method in service.methods:
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        handlers[method.name] = make(
            methods[method.name],
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def make_server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Create credentials that use the latest files for each new connection.

    gRPC requests the configuration before every handshake, and creates a new context for each configuration. TLS
    sessions therefore end when the files change.
    """
    sent = tls.credentials
    lock = threading.Lock()  # handshakes run in several threads

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal sent
        with lock:
            if sent is tls.credentials:
                return None  # unchanged
            sent = tls.credentials
            return _configuration(sent)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(sent), fetch, require_client_authentication=tls.requires_client_certificates
    )


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(credentials.key, credentials.cert)], credentials.client_ca)
