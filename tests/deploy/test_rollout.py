"""Everything that operators change, in one hour of a busy service: no request is lost, and nothing is mixed up."""

import asyncio
import itertools
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest

from model.artifact.files import GOLDEN, Artifact, write_manifest
from service.config import Settings
from service.engine.model_loader import LoadedModel
from tests.certificates import Identity, Secret
from tests.deploy.conftest import find_tool
from tests.deploy.replicas import TCP_CONFIG, Nginx, Replica, Replicas, nginx_before, run_replicas
from tests.deploy.steady_load import Caller, SteadyLoad, tls_grpc_send, tls_rest_send
from tests.keys import named_key
from tests.manifests import with_head
from tests.service.conftest import encode, open_harness

SERVICE_CONFIG = Path("deploy/grpc-service-config.json")
DRAIN_DELAY_MS, CONNECTION_AGE_MS = 5_000, 4_000
CHANGE_TIMEOUT_S = 60
SENDERS = 3
"""Per caller and API."""
CA = Identity.make_ca("server CA")
TEXTS = {"search": "money bank grows", "indexing": "river bank flows " * 20}


@dataclass
class Service:
    """A running service whose TLS files, keys, models and replicas change."""

    tls: Secret
    config: Secret
    callers: dict[str, Caller]
    replicas: Replicas
    nginx: Nginx
    certificate: Identity
    artifact: Path

    def write_config(self, *keys: tuple[str, str]) -> None:
        """Replace the files of keys and models, as the kubelet does: at once in every replica."""
        lines = "\n".join(named_key(name, key) for name, key in keys)
        models = f"[[models]]\nname = 'search'\nsource = '{self.artifact}'\n"
        self.config.write(keys=lines.encode(), models=models.encode())

    @property
    def keys(self) -> list[tuple[str, str]]:
        return [(name, caller.key) for name, caller in self.callers.items()]

    def wait(self, condition: Callable[[Replica], bool]) -> None:
        """Wait until all replicas have applied a change."""
        deadline = time.monotonic() + CHANGE_TIMEOUT_S
        while not all(condition(replica) for replica in self.replicas.running):
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def has_reloaded(self, subject: str, times: int) -> Callable[[Replica], bool]:
        name = f'attendant_reloads_total{{result="success",subject="{subject}"}}'
        return lambda replica: replica.metric(name, context()) >= times

    def renew_certificate(self) -> None:
        self.certificate = CA.issue("server")
        self.tls.write(cert=self.certificate.pem, key=self.certificate.key_pem)
        self.wait(self.has_reloaded("tls", 1))

    def replace_key(self, name: str) -> None:
        """Add a key, let the caller use it, then remove the old one."""
        caller, new = self.callers[name], f"{name}-new"
        self.write_config(*self.keys, (name, new))
        self.wait(self.has_reloaded("api_keys", 1))
        caller.key = new
        time.sleep(0.5)  # requests with the old key are on their way
        self.write_config(*self.keys)
        self.wait(self.has_reloaded("api_keys", 2))

    def replace_model(self, artifact: Path) -> None:
        self.artifact = artifact
        self.write_config(*self.keys)
        self.wait(self.has_reloaded("models", 1))

    def restart(self) -> None:
        """Replace each replica, with SIGTERM at once, while it still has connections."""
        for oldest in list(self.nginx.endpoints):
            self.nginx.add(self.replicas.start())
            self.nginx.remove(oldest)
            self.replicas.stop(oldest)


def context() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=CA.pem.decode())


def digest_of(artifact: Path) -> str:
    return f"sha256:{Artifact.read_manifest(artifact)[1]}"


def reference(artifact: Path, text: str) -> np.ndarray:
    """Return the vector of a text, computed by a separate engine."""

    async def run() -> np.ndarray:
        model = LoadedModel.load(Settings(model_dir=artifact, provider="cpu", precision="float32"))
        async with open_harness(model) as harness:
            pooled = (await encode(harness.engine, text)).results[0].pooled
            assert pooled is not None
            return pooled

    return asyncio.run(run())


@pytest.fixture(scope="module")
def artifacts(default_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The default model, and one with other vectors."""
    other = tmp_path_factory.mktemp("other") / "artifact"
    shutil.copytree(default_artifact, other)
    write_manifest(other, with_head(Artifact.open(other).manifest, pooling="cls"))
    (other / GOLDEN).unlink()  # its vectors use the other pooling
    return [default_artifact, other]


@pytest.mark.slow
def test_changes_under_load_lose_no_request_and_mix_nothing_up(artifacts: list[Path], tmp_path: Path) -> None:
    """TLS, two callers, and under load: a new certificate, a new key, a new model, and new replicas."""
    find_tool("nginx")
    references = {
        name: {digest_of(artifact): reference(artifact, text) for artifact in artifacts} for name, text in TEXTS.items()
    }
    callers = {name: Caller(f"{name}-old", text, references[name]) for name, text in TEXTS.items()}
    certificate = CA.issue("server")
    tls = Secret(tmp_path / "tls", cert=certificate.pem, key=certificate.key_pem)
    config = Secret(tmp_path / "config", keys=b"", models=b"")
    options = {
        "tls_cert_file": tls.path("cert"), "tls_key_file": tls.path("key"), "api_keys_file": config.path("keys"),
        "models_file": config.path("models"), "precision": "float32", "drain_delay_ms": DRAIN_DELAY_MS,
        "max_grpc_connection_age_ms": CONNECTION_AGE_MS,
    }  # fmt: skip
    with run_replicas(artifacts[0], **options) as replicas, ExitStack() as stack:
        nginx = Nginx(tmp_path, replicas, TCP_CONFIG)
        service = Service(tls, config, callers, replicas, nginx, certificate, artifacts[0])
        service.write_config(*service.keys)
        replicas.start_all(2)
        service.nginx = nginx = stack.enter_context(nginx_before(replicas, tmp_path, TCP_CONFIG))
        credentials = grpc.ssl_channel_credentials(CA.pem)
        settings = [("grpc.service_config", SERVICE_CONFIG.read_text()), ("grpc.use_local_subchannel_pool", 1)]
        channels = [stack.enter_context(grpc.secure_channel(nginx.grpc, credentials, settings)) for _ in range(SENDERS)]
        load = SteadyLoad(
            rest=[tls_rest_send(nginx.address, nginx.rest_port, context(), caller) for caller in callers.values()]
            * SENDERS,
            grpc=[tls_grpc_send(channel, caller) for channel, caller in itertools.product(channels, callers.values())],
        )
        with load:
            load.wait_for(100)
            service.renew_certificate()
            load.wait_for(50)
            service.replace_key("search")
            load.wait_for(50)
            service.replace_model(artifacts[1])
            load.wait_for(50)
            service.restart()
            load.wait_for(50)
        serials = {nginx_serial(nginx) for _ in range(4)}
    print(f"requests: {dict(load.counts)}, lost: {len(load.failed)}, served: {[c.served for c in callers.values()]}")
    assert load.failed == []
    assert min(load.counts.values()) >= 200
    assert serials == {service.certificate.serial}
    for caller in callers.values():
        assert set(caller.served) == set(caller.references)


def nginx_serial(nginx: Nginx) -> str:
    """Return the serial number of the certificate of one of the replicas."""
    with (
        socket.create_connection((nginx.address, nginx.rest_port)) as plain,
        context().wrap_socket(plain, server_hostname=nginx.address) as secure,
    ):
        peer = secure.getpeercert()
        assert peer is not None
        return str(peer["serialNumber"])
