"""Every option, declared once: environment `ATTENDANT_*`, `.env` file and command line set the same fields."""

import difflib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from model.artifact.console import plain_message
from service.connections import parse_networks
from service.errors import echo
from service.flags import MODEL_SELECTION, describe_option, parse_flags
from service.model_options import ModelOption, ModelOptionError, parse_aliases, parse_models

PREFIX = "ATTENDANT_"
DOTENV = Path(".env")
ORIGIN = re.compile(r"\*|[a-zA-Z][a-zA-Z0-9+.-]*://(\[[0-9a-fA-F:.]+\]|[^\s/:?#@\[\]]+)(:[0-9]+)?")
HOST = re.compile(r"\*|(\*\.)?[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*|[0-9a-fA-F.]*:[0-9a-fA-F.]*:[0-9a-fA-F:.]*", re.ASCII)

LONG_INPUT_TOKENS = 2048
LONG_INPUT_REQUEST_BYTES = 16 * 2**20
"""Default of `max_request_bytes` for models with inputs of more than `LONG_INPUT_TOKENS`."""
MAX_NUMBER = 2**31 - 1
"""Upper bound on counts and durations. gRPC takes them as C integers."""
MAX_BYTES = 2**50
"""Upper bound on sizes: more than any memory, and twice as much still fits in the 64-bit integers of the API."""
Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(gt=0, le=MAX_NUMBER)]
NonNegative = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Bytes = Annotated[int, Field(gt=0, le=MAX_BYTES)]
PrecisionOption = Literal["auto", "bfloat16", "float16", "float32", "int8"]
Provider = Literal["auto", "cuda", "openvino", "cpu"]
T = TypeVar("T")


def _reject_empty(value: object) -> object:
    """Reject an empty path, which would be the working directory."""
    if value == "":
        raise ValueError("must be a path")
    return value


FilePath = Annotated[Path, BeforeValidator(_reject_empty)]


class ConfigError(Exception):
    """An invalid option, named in the message."""


class Settings(BaseModel):
    """The options of `attendant serve`. Each is also an environment variable ATTENDANT_* and a line of .env."""

    # Names end in their unit.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)

    model_dir: FilePath = Path("models/all-MiniLM-L6-v2")
    """Directory of the artifact to serve."""
    model_digest: str | None = None
    """Required artifact digest, with or without "sha256:". Any other artifact is rejected at startup. Unset accepts
    any."""
    models: str = ""
    """Models to serve, separated by commas: name=directory, or name=directory@sha256:digest to require a digest. The
    first one is the default. If set, ATTENDANT_MODEL_DIR and ATTENDANT_MODEL_DIGEST do not apply."""
    models_file: FilePath | None = None
    """TOML file with the models to serve, their digests and aliases (docs/models-file.md). Changes of the file and of
    the artifacts apply while the server runs. If set, no other option selects models."""
    model_aliases: str = ""
    """Other names of models in requests, separated by commas: alias for the default model, or alias=name for a model of
    ATTENDANT_MODELS."""
    cache_dir: FilePath | None = None
    """Directory of the artifacts that `attendant serve SOURCE` exports. Unset selects $XDG_CACHE_HOME/attendant, or
    ~/.cache/attendant."""

    host: str = "127.0.0.1"
    """Address of REST and gRPC, IPv4 or IPv6."""
    rest_port: Port = 8080
    """REST port. 0 selects a free port."""
    grpc_port: Port = 8081
    """gRPC port. 0 selects a free port."""
    admin_host: str = "127.0.0.1"
    """Address of metrics and health checks, which require no key, and of the admin API, which does."""
    admin_port: Port = 8082
    """Port of metrics and health checks. 0 selects a free port."""
    docs: bool = True
    """Serve /docs and /openapi.json."""
    allowed_hosts: str = ""
    """Host names that requests may use, separated by commas. *.example.org allows all names below example.org, * every
    name. If empty, a server on a loopback address accepts loopback names only, and any other server every name. Does
    not apply to the admin port."""
    cors_origins: str = ""
    """Origins that browsers may send requests from, separated by commas; * allows all."""
    truncate: Literal["error", "right", "left", "auto"] = "error"
    """How /v1/embeddings, /v1/rerank, /score, /classify and /pooling treat an input over the token limit if the request
    does not say: reject it (error), or truncate it at the right, the left, or the side that the model names (auto)."""
    root_path: str = ""
    """Path at which a proxy serves this server, such as /embeddings-api, whether or not the proxy removes it from
    requests."""
    openai_token_ids: bool = False
    """Accept token ids at /v1/embeddings. They must be ids of the served model's vocabulary."""
    api_keys_file: FilePath | None = None
    """File with one key, or name:sha256[:weight[:tokens_per_second]], per line. If set, requests need a key. Changes of
    the file apply within seconds."""
    admin_keys_file: FilePath | None = None
    """File of keys, in the format of ATTENDANT_API_KEYS_FILE, that may load and unload models and list callers. Unset
    disables these operations. Changes of the file apply within seconds."""
    tls_cert_file: FilePath | None = None
    """PEM file with the server's certificate and its intermediates. If set, all ports require TLS."""
    tls_key_file: FilePath | None = None
    """PEM file with the unencrypted key of the certificate."""
    tls_client_ca_file: FilePath | None = None
    """PEM file with the CAs of client certificates. If set, REST and gRPC require one. The admin port does not."""

    precision: PrecisionOption = "auto"
    """Precision. auto selects float16 on a GPU, bfloat16 on a CPU with AMX or an AMD CPU with AVX512-BF16, else
    float32. int8 requires a CPU with VNNI and an artifact with a graph for it."""
    special_tokens_in_text: bool | None = None
    """Read a special token that a text spells, such as [SEP], as that token, as transformers does. Unset keeps the
    setting of each artifact, which is plain text by default."""
    provider: Provider = "auto"
    """Backend. auto selects CUDA if there is a GPU and the artifact has a cuda graph, otherwise OpenVINO if it is
    installed, otherwise ONNX Runtime on the CPU."""
    min_cosine: float = Field(0.0, ge=0, le=1)
    """Smallest cosine to float32 of the results of a model, which every start measures. Below it, auto uses float32,
    and a requested precision is an error. 0 selects the limit of the precision (docs/own-model.md)."""
    gpu_device: NonNegative = 0
    """CUDA device index, from 0."""
    gpu_memory_limit_bytes: Annotated[int, Field(ge=0, le=MAX_BYTES)] = 0
    """GPU memory for all models, in bytes. Loading a model that would exceed it fails. 0 sets no limit."""
    threads: int = Field(0, ge=0, le=1024)
    """Number of CPU threads for inference, and for tokenizing long batches. 0 selects all CPUs that the cgroup quota
    and CPU affinity allow."""
    workers: Annotated[int, BeforeValidator(lambda value: 0 if value == "auto" else value), Field(ge=0, le=64)] = 1
    """Number of worker processes, which share the ports, the CPUs and the limits of this server, at most 64. auto or 0
    selects it by the measured speed of the model (docs/workers.md)."""
    max_batch_tokens: NonNegative = 0
    """Maximum number of tokens in a packed batch, at most 1024 on a CPU. 0 selects the default of the execution
    provider."""

    max_inputs: Positive = 256
    """Maximum number of inputs per request. /v1/embeddings, /embed, /api/embed and infinity's embeddings take 2048."""
    max_documents: Positive = 1000
    """Maximum number of documents per rerank request."""
    max_characters_per_token: Annotated[int, Field(gt=0, le=10_000)] = 64
    """Maximum length of a text, in characters per token of the model's limit: with 64, a 256-token model accepts 16,384
    characters."""
    max_spans_per_input: Positive = 1024
    """Maximum number of spans per input."""
    max_spans_per_request: Positive = 4096
    """Maximum number of spans per request."""
    max_request_bytes: Bytes = 2 * 2**20
    """Maximum size of a REST request body, in bytes. If it is not set and a model accepts inputs of more than 2048
    tokens, the maximum is 16777216."""
    max_grpc_message_bytes: Positive = 8 * 2**20
    """Maximum size of a gRPC request message, in bytes."""
    max_pending_request_bytes: Bytes = 256 * 2**20
    """Maximum total size of request bodies and gRPC messages in transit, in bytes. One caller may use half of it."""
    max_pending_response_bytes: Bytes = 256 * 2**20
    """Maximum total size of responses that are computed or that clients have not read yet, in bytes. One caller may use
    half of it."""
    max_response_bytes: Bytes = 64 * 2**20
    """Maximum size of a response, in bytes. Larger ones are rejected before inference."""
    max_explain_bytes: Bytes = 2**30
    """Maximum size of the intermediate results of one input whose layers or attention maps are requested, in bytes.
    Larger ones are rejected before inference."""
    max_connections: Positive = 2048
    """Maximum number of REST connections and of gRPC connections. At most half as many TLS handshakes may be in
    progress."""
    max_connections_per_address: NonNegative = 0
    """Maximum number of REST connections, and of gRPC connections, from one address. 0 selects half of
    ATTENDANT_MAX_CONNECTIONS."""
    trusted_proxies: str = ""
    """Addresses and networks of proxies, such as 10.0.0.0/8, separated by commas. ATTENDANT_MAX_CONNECTIONS_PER_ADDRESS
    does not apply to them."""
    max_grpc_streams: Positive = 256
    """Maximum number of concurrent gRPC calls per connection."""
    max_grpc_connection_age_ms: NonNegative = 300_000
    """Age of a gRPC connection, in milliseconds, after which the client is told to open a new one, so that load is
    balanced again. Calls in progress finish. 0 sets no limit."""
    max_queue_ms: Positive = 2000
    """Maximum estimated wait of a request in milliseconds: in the queue, for a thread that prepares it, and for the
    event loop. Longer waits are rejected."""
    max_explain_queue_ms: Positive = 2000
    """Maximum estimated wait of a request for the explain lane (layers other than the last, attention maps,
    comparisons), in milliseconds."""
    max_queue_tokens: Positive = 262_144
    """Maximum number of queued tokens. Excess requests are rejected; an empty queue accepts one request of any size."""
    max_explain_queue_tokens: Positive = 65_536
    """Maximum number of queued tokens of the explain lane."""
    max_timeout_ms: Positive = 60_000
    """Maximum duration of a request, in milliseconds."""
    header_timeout_ms: Positive = 10_000
    """Timeout for receiving request headers, and for the handshake of a TLS or gRPC connection, in milliseconds."""
    body_timeout_ms: Positive = 15_000
    """Timeout for receiving a request body, in milliseconds."""
    response_stall_timeout_ms: Positive = 30_000
    """Time in milliseconds after which a connection is closed whose client does not read a response. Large responses
    may take longer, at 64 KiB per second."""
    drain_delay_ms: NonNegative = 0
    """Time in milliseconds to keep serving after SIGTERM, so that load balancers can deregister the instance."""
    drain_timeout_ms: Positive = 25_000
    """Maximum time from SIGTERM to process exit, in milliseconds, including the drain delay."""

    @property
    def served_models(self) -> tuple[ModelOption, ...]:
        """The models to serve, at least one; the first one is the default. Raises `ConfigError`."""
        options = _parse("models", parse_models, self.models) or [ModelOption(self.model_dir, self.model_digest)]
        names = [option.name for option in options]
        aliases = _parse("model_aliases", lambda value: parse_aliases(value, names), self.model_aliases)
        return tuple(replace(option, aliases=aliases[option.name]) for option in options)

    def request_bytes(self, max_input_tokens: int) -> int:
        """Return the maximum size of a REST request body for a model, in bytes."""
        if "max_request_bytes" in self.model_fields_set or max_input_tokens <= LONG_INPUT_TOKENS:
            return self.max_request_bytes
        return max(self.max_request_bytes, LONG_INPUT_REQUEST_BYTES)

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: str) -> str:
        return _check_list(value, ORIGIN, "is not an origin such as https://example.org, or *")

    @field_validator("root_path")
    @classmethod
    def _check_root_path(cls, value: str) -> str:
        if value and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", value):
            raise ValueError(f'"{echo(value)}" is not a path such as /embeddings-api')
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: str) -> str:
        for item in value.split(","):
            try:
                parse_networks(item)
            except ValueError:
                problem = "is not an IP address or a network such as 10.0.0.0/8"
                raise ValueError(f'"{echo(item.strip())}" {problem}') from None
        return value

    @property
    def worker_connections(self) -> int:
        """The maximum number of connections of one API in one worker."""
        return math.ceil(self.max_connections / max(1, self.workers))

    @property
    def worker_request_bytes(self) -> int:
        """The maximum total size of request bodies and gRPC messages in transit in one worker, in bytes."""
        return math.ceil(self.max_pending_request_bytes / max(1, self.workers))

    @property
    def connections_per_address(self) -> int:
        """The maximum number of connections of one API from one address in one worker."""
        limit = self.max_connections_per_address or max(1, self.max_connections // 2)
        return math.ceil(limit / max(1, self.workers))

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: str) -> str:
        return _check_list(value, HOST, "is not a host name or an address without a port, *.example.org, or *")

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level to log."""
    log_format: Literal["auto", "text", "json"] = "auto"
    """Log format. auto selects text on a terminal and JSON elsewhere."""
    access_log: Literal["errors", "all", "none"] = "errors"
    """Requests to log, one line each: rejected and failed ones, all, or none."""
    slow_log_ms: NonNegative = 0
    """Duration of a request, in milliseconds, above which it is logged as a warning, whatever ATTENDANT_ACCESS_LOG is.
    0 logs none for its duration."""


def read_option_file(option: str, path: Path) -> bytes:
    """Return the content of the file that an option names. Raises `ConfigError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path} ({error.strerror}). Check the path and its mode.") from None


def _parse(field: str, parser: Callable[[str], T], value: str) -> T:
    try:
        return parser(value)
    except ModelOptionError as error:
        raise ConfigError(f"{PREFIX}{field.upper()}: {error}") from None


def _check_list(value: str, pattern: re.Pattern[str], problem: str) -> str:
    for item in value.split(","):
        if item.strip() and not pattern.fullmatch(item.strip()):
            raise ValueError(f'"{echo(item.strip())}" {problem}')
    return value


def load_settings(arguments: list[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Return the options; raises `ConfigError` with a one-line message that names the invalid option.

    The command line takes precedence over `environ`, and `environ` over the file `.env`.

    Args:
        arguments: Command-line flags (`--rest-port 9000`); None leaves the command line out.
        environ: Environment variables; None selects the process's own.
    """
    return load_serve_settings(arguments, environ)[0]


def load_serve_settings(
    arguments: list[str] | None, environ: Mapping[str, str] | None = None
) -> tuple[Settings, str | None]:
    """Return the settings like `load_settings`, and the source on the command line, if any.

    A source replaces the models of the environment, so these are left out then.
    """
    values = _options_in(_read_dotenv(DOTENV)) | _options_in(os.environ if environ is None else environ)
    flags = {} if arguments is None else parse_flags(arguments, Settings.model_fields)
    source = flags.pop("source", None)
    if source is not None:
        values = {name: value for name, value in values.items() if name not in MODEL_SELECTION}
    try:
        settings = Settings(**values | flags)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        problem = plain_message(first["msg"])
        raise ConfigError(f"{PREFIX}{name.upper()}: {problem} ({echo(str(first['input'])) or 'empty'}).") from None
    _ = settings.served_models  # raises for an invalid list
    if settings.drain_delay_ms >= settings.drain_timeout_ms:
        raise ConfigError(
            f"{PREFIX}DRAIN_DELAY_MS: must be less than {PREFIX}DRAIN_TIMEOUT_MS "
            f"({settings.drain_delay_ms}, limit {settings.drain_timeout_ms}). Reduce the delay."
        )
    return settings, source


def _read_dotenv(path: Path) -> dict[str, str | None]:
    """Return the variables of a file, if it exists.

    Raises `ConfigError` if it cannot be read, and for a line that dotenv would skip: it could be the option that
    requires a key.
    """
    if not path.is_file():
        return {}
    try:
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Check its mode.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8. Convert it.") from None
    for binding in parse_stream(StringIO(content)):
        is_option = binding.key is not None and binding.key.upper().startswith(PREFIX)
        if binding.error or (is_option and binding.value is None):
            raise ConfigError(f"{path}: line {binding.original.line}: not NAME=VALUE. Correct or remove the line.")
    return dotenv_values(stream=StringIO(content))


def _options_in(environ: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the options in `environ`, keyed by field; raises `ConfigError` for an unknown one."""
    options = {}
    for variable, value in environ.items():
        name = variable.upper()
        if not name.startswith(PREFIX) or value is None or _is_kubernetes_service(name, value):
            continue
        field = name.removeprefix(PREFIX).lower()
        if field not in Settings.model_fields:
            nearest = difflib.get_close_matches(field, Settings.model_fields, 1)
            hint = f"Did you mean {PREFIX}{nearest[0].upper()}?" if nearest else "See: attendant serve --help"
            raise ConfigError(f"{variable}: unknown option. {hint}")
        options[field] = value
    return options


def _is_kubernetes_service(name: str, value: str) -> bool:
    """Return whether Kubernetes injects the variable, in a namespace with a Service named like this prefix."""
    return re.search(r"_SERVICE_HOST$|_SERVICE_PORT(_|$)|_PORT_[0-9]+_[A-Z]+(_|$)", name) is not None or (
        name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value) is not None
    )


EVERYDAY = (
    "model_dir", "models", "models_file", "cache_dir", "host", "rest_port", "grpc_port", "admin_host", "admin_port",
    "allowed_hosts", "cors_origins", "root_path", "truncate", "api_keys_file", "tls_cert_file", "tls_key_file",
    "precision", "provider", "threads", "workers", "log_level", "log_format", "access_log",
)  # fmt: skip
"""The options that most installations set some of; the others have defaults for unusual loads and environments."""


def describe_options() -> str:
    """Return the tables of options in Markdown; docs/options.md is its output."""
    lines = [
        "# Options",
        "",
        "Generated by `make docs` from `service/config.py`. Set an option in the environment, in a `.env` file, "
        "or as a flag of `attendant serve`. The first table has the options that most installations set some of.",
        *_option_table("Everyday options", [name for name in Settings.model_fields if name in EVERYDAY]),
        *_option_table("Other options", [name for name in Settings.model_fields if name not in EVERYDAY]),
    ]
    return "\n".join(lines) + "\n"


def _option_table(title: str, names: Sequence[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "", "| environment | flag | default | description |", "|---|---|---|---|")
    for name in names:
        field = Settings.model_fields[name]
        description, default = describe_option(field)
        flag = name.replace("_", "-")
        flags = f"`--{flag}`, `--no-{flag}`" if field.annotation is bool else f"`--{flag}`"
        yield f"| `{PREFIX}{name.upper()}` | {flags} | {f'`{default}`' if default else ''} | {description} |"
