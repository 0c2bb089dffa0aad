"""The gRPC server: our services, health and reflection on one port."""

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from service.auth import ApiKeys
from service.config import Settings
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.pb import encoder_pb2, encoder_pb2_grpc
from service.rpc.encoder import SERVICE, EncoderServicer
from service.rpc.interceptor import DOOR, Interceptor


class RpcServer:
    """Made on the event loop; health says NOT_SERVING until told otherwise."""

    def __init__(self, host: Lifecycle, settings: Settings, metrics: Metrics, keys: ApiKeys | None) -> None:
        methods = [
            f"/{SERVICE}/{method.name}" for method in encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"].methods
        ]
        metrics.create_requests(DOOR, methods)
        self._server = grpc.aio.server(
            interceptors=[Interceptor(metrics, keys, frozenset(methods))],
            options=[
                ("grpc.max_receive_message_length", settings.max_request_bytes),
                ("grpc.max_send_message_length", settings.max_response_bytes * 2),
                ("grpc.so_reuseport", 0),
            ],
        )
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(  # type: ignore[no-untyped-call]
            EncoderServicer(host, settings), self._server
        )
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)

    async def start(self, address: str) -> int:
        """Listen, and return the port; raises OSError when the address cannot be had."""
        try:
            port: int = self._server.add_insecure_port(address)
        except RuntimeError:
            raise OSError(f"{address} is in use or not ours") from None
        await self.say_serving(False)
        await self._server.start()
        return port

    async def say_serving(self, serving: bool) -> None:
        """What health checks are told, for the server as a whole and for the service."""
        status = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            await self._health.set(service, status.SERVING if serving else status.NOT_SERVING)

    async def say_stopping(self) -> None:
        """NOT_SERVING from here on, whatever is set later."""
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_s: float) -> None:
        """Take no new calls; give those that run `grace_s` seconds."""
        await self._server.stop(grace_s)
