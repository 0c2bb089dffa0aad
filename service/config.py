"""Every option, written once: environment `ATTENDANT_*`, a `.env` file and the command line read the same fields."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from dotenv import dotenv_values
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "ATTENDANT_"

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(gt=0)]


class ConfigError(Exception):
    """An option is wrong; the message names it."""


class Settings(BaseSettings):
    """What `attendant serve` can be told. Names end in their unit."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        extra="ignore",  # a .env file may hold other programs' lines; load_settings refuses wrong ones of ours
        frozen=True,
        cli_kebab_case=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_implicit_flags=True,
    )

    model_dir: Path = Field(Path("models/all-MiniLM-L6-v2"), description="The artifact to serve.")
    model_sha256: str | None = Field(None, description="Refuse any artifact but the one with this digest.")
    model_aliases: str = Field("", description="Other names that requests may call the model, with commas between.")

    host: str = Field("127.0.0.1", description="Address that REST and gRPC listen on.")
    rest_port: Port = Field(8080, description="REST; 0 picks a free port.")
    grpc_port: Port = Field(8081, description="gRPC; 0 picks a free port.")
    admin_host: str = Field("127.0.0.1", description="Address that metrics and health listen on; it asks for no key.")
    admin_port: Port = Field(8082, description="Metrics and health; 0 picks a free port.")
    docs: bool = Field(True, description="Serve /docs and /openapi.json.")
    api_keys_file: Path | None = Field(
        None, description="A file with one key a line; when set, callers must send one as a bearer token."
    )

    precision: Literal["auto", "bfloat16", "float16", "float32", "int8"] = Field(
        "auto",
        description="auto is float16 on a GPU, bfloat16 where the CPU has the unit and the plugin is installed, "
        "else float32; int8 is only had when asked for, of an artifact with a graph for it.",
    )
    provider: Literal["auto", "cuda", "openvino", "cpu"] = Field(
        "auto",
        description="What runs the model; auto is a CUDA GPU where there is one and the artifact has a graph for it, "
        "else the OpenVINO plugin where it can be had, else onnxruntime itself.",
    )
    gpu_device: int = Field(0, ge=0, description="Which GPU, as CUDA counts them.")
    gpu_memory_bytes: int = Field(0, ge=0, description="GPU memory the model may take; 0 is as much as there is.")
    threads: int = Field(0, ge=0, description="CPU threads for the model; 0 is what the cgroup and affinity allow.")
    max_batch_tokens: int = Field(
        0,
        ge=0,
        description="Maximum number of tokens in a packed batch. 0 selects the default of the execution provider.",
    )

    max_inputs: Positive = Field(256, description="Inputs in a request (OpenAI door: 2048, its own limit).")
    max_spans_per_input: Positive = Field(1024, description="Maximum number of spans in an input.")
    max_spans_per_request: Positive = Field(4096, description="Maximum number of spans in a request.")
    max_characters_per_token: Positive = Field(
        64, description="An input may have this many characters for each token the model takes."
    )
    max_request_bytes: Positive = Field(8 * 2**20, description="Bytes of a request body or gRPC message.")
    max_response_bytes: Positive = Field(64 * 2**20, description="Bytes of a reply; a larger one is refused unrun.")
    max_queue_ms: Positive = Field(
        2000,
        description="Maximum estimated wait of a request in the queue, in milliseconds. Longer waits are rejected.",
    )
    max_explain_queue_ms: Positive = Field(
        2000, description="The same limit for attention maps, comparisons and layers other than the last."
    )
    max_queue_tokens: Positive = Field(
        262_144,
        description="Maximum number of queued tokens. Excess requests are rejected; an empty queue accepts any size.",
    )
    max_explain_queue_tokens: Positive = Field(
        65_536, description="The same limit for attention maps, comparisons and layers other than the last."
    )
    max_deadline_ms: Positive = Field(60_000, description="The longest a request may take.")
    header_timeout_ms: Positive = Field(10_000, description="How long a client may take to send its headers.")
    body_timeout_ms: Positive = Field(15_000, description="How long a client may take to send its body.")
    drain_delay_ms: int = Field(0, ge=0, description="After SIGTERM, how long to serve on while balancers look away.")
    drain_timeout_ms: Positive = Field(30_000, description="How long a stop may take in all before it is forced.")

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["auto", "text", "json"] = Field("auto", description="auto is text on a terminal, else JSON.")


def load_settings(arguments: list[str] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read the options; raise `ConfigError` with one line that names the wrong one.

    `arguments` are command-line flags (`--rest-port 9000`); None leaves the command line out.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for name in (*(os.environ if environ is None else environ), *dotenv_values(".env")):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise ConfigError(f"{name}: no such option. See: attendant serve --help")
    try:
        return Settings(_cli_parse_args=arguments, _cli_prog_name="attendant serve")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{PREFIX}{name.upper()}: {first['msg'].replace('Input should', 'it must')}.") from None


def describe_options() -> str:
    """The table of options in Markdown; docs/options.md is its output."""
    lines = [
        "# Options",
        "",
        "Written by `make docs` from `service/config.py`. Each can be set in the environment, in a `.env` file, "
        "or as a flag of `attendant serve`.",
        "",
        "| environment | flag | default | what it does |",
        "|---|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        default = field.get_default()
        shown = "" if default in (None, "") else f"`{json.dumps(default, default=str).strip(chr(34))}`"
        flag = "--" + name.replace("_", "-")
        lines.append(f"| `{PREFIX}{name.upper()}` | `{flag}` | {shown} | {field.description} |")
    return "\n".join(lines) + "\n"
