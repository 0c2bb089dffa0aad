"""Options from the environment, flags and .env files, and errors for unknown options and invalid values."""

from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest

from service.config import ConfigError, Settings, load_serve_settings, load_settings

FORMATTED = {
    "allowed_hosts": "attendant.example",
    "cors_origins": "https://attendant.example",
    "models": "one=/srv/one,two=/srv/two@sha256:" + "0" * 64,
    "model_aliases": "three,four",
    "host": "::1",
    "admin_host": "10.0.0.1",
    "trusted_proxies": "10.0.0.0/8",
    "min_cosine": "0.5",
    "special_tokens_in_text": "true",
}


def other_value(name: str) -> str:
    """Return a valid value that differs from the default."""
    field = Settings.model_fields[name]
    if name in FORMATTED:
        return FORMATTED[name]
    if isinstance(field.default, bool):
        return str(not field.default).lower()
    if isinstance(field.default, int):
        return str(field.default + 1)
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ["/srv/other"]
    return next(str(choice) for choice in choices if choice != field.default)


VALUES = {name: other_value(name) for name in Settings.model_fields}
WRONG = {
    "rest_port": "70000",
    "threads": "-1",
    "precision": "fp8",
    "max_inputs": "0",
    "docs": "perhaps",
    "special_tokens_in_text": "perhaps",
    "drain_delay_ms": "soon",
    "log_level": "loud",
    "provider": "tpu",
    "max_queue_tokens": "1.5",
    "min_cosine": "1.5",
    "gpu_device": "-1",
    "gpu_memory_limit_bytes": "-1",
}


@pytest.fixture(autouse=True)
def empty_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run the test in an empty directory, without a .env file."""
    monkeypatch.chdir(tmp_path)


def format_value(settings: Settings, name: str) -> str:
    value = getattr(settings, name)
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", VALUES)
def test_option_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"ATTENDANT_{name.upper()}", VALUES[name])
    assert format_value(load_settings(), name) == VALUES[name]


@pytest.mark.parametrize("name", VALUES)
def test_option_is_read_from_a_flag(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A flag overrides the environment."""
    monkeypatch.setenv(f"ATTENDANT_{name.upper()}", format_value(Settings(), name).replace("None", ""))
    flag = f"--{name.replace('_', '-')}"
    switches = {"docs": "--no-docs", "openai_token_ids": "--openai-token-ids"}
    spellings = [[switches[name]]] if name in switches else [[f"{flag}={VALUES[name]}"], [flag, VALUES[name]]]
    assert [format_value(load_settings(arguments), name) for arguments in spellings] == [VALUES[name]] * len(spellings)


@pytest.mark.parametrize("name", VALUES)
def test_option_is_read_from_a_dotenv_file(tmp_path: Path, name: str) -> None:
    (tmp_path / ".env").write_text(f"ATTENDANT_{name.upper()}={VALUES[name]}\n")
    assert format_value(load_settings(), name) == VALUES[name]


@pytest.mark.parametrize(
    ("name", "place"),
    [(name, place) for name in WRONG for place in ("environment", "file", "flag") if (name, place) != ("docs", "flag")],
)
def test_wrong_value_error_names_the_option(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, place: str
) -> None:
    """The error is one line."""
    variable, arguments = f"ATTENDANT_{name.upper()}", None
    if place == "environment":
        monkeypatch.setenv(variable, WRONG[name])
    elif place == "file":
        (tmp_path / ".env").write_text(f"{variable}={WRONG[name]}\n")
    else:
        arguments = [f"--{name.replace('_', '-')}={WRONG[name]}"]
    with pytest.raises(ConfigError) as raised:
        load_settings(arguments)
    assert str(raised.value).startswith(f"{variable}: ")
    assert str(raised.value).endswith(f" ({WRONG[name]}).")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name.endswith(("_dir", "_file"))])
def test_empty_path_is_an_error(name: str) -> None:
    """It would be the working directory, and without an error, an empty variable could start a server without keys."""
    with pytest.raises(ConfigError, match=rf"^ATTENDANT_{name.upper()}: must be a path \(empty\)\.$"):
        load_settings([], {f"ATTENDANT_{name.upper()}": ""})


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("allowed_hosts", "is not a host name or an address"),
        ("cors_origins", "is not an origin"),
        ("root_path", "is not a path"),
        ("trusted_proxies", "is not an IP address or a network"),
    ],
)
@pytest.mark.parametrize(
    ("value", "echoed"), [("\udcff", "\ufffd"), ("/ " + "x" * 5000, r"/ x+\.\.\."), ("/ b.org", r"/ b\.org")]
)
def test_message_about_an_address_is_short_and_printable(name: str, problem: str, value: str, echoed: str) -> None:
    """Variables that are not UTF-8 contain surrogates."""
    with pytest.raises(ConfigError, match=f'ATTENDANT_{name.upper()}: "{echoed}" {problem}') as raised:
        load_settings([], {f"ATTENDANT_{name.upper()}": value})
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("name", [name for name, field in Settings.model_fields.items() if field.annotation is int])
def test_numbers_have_a_maximum(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Larger ones would overflow in gRPC when the server starts."""
    monkeypatch.setenv(f"ATTENDANT_{name.upper()}", "9" * 24)
    with pytest.raises(ConfigError, match=f"ATTENDANT_{name.upper()}: .*less than or equal to"):
        load_settings()


@pytest.mark.parametrize(
    "line", ["ATTENDANT_API_KEYS_FILE: keys", "ATTENDANT_API_KEYS_FILE keys", "attendant_api_keys_file", "= x", "a b"]
)
def test_invalid_line_of_the_dotenv_file_is_an_error(tmp_path: Path, line: str) -> None:
    """Skipping it could start a server without keys."""
    (tmp_path / ".env").write_text(f"# comment\nOTHER\n\nATTENDANT_REST_PORT=9000\n{line}\n")
    with pytest.raises(ConfigError) as raised:
        load_settings()
    assert str(raised.value) == ".env: line 5: not NAME=VALUE. Correct or remove the line."


def test_dotenv_file_is_text_in_utf8(tmp_path: Path) -> None:
    """A byte order mark, which some editors write, is not part of the first name."""
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbfATTENDANT_REST_PORT=9000\r\n")
    assert load_settings().rest_port == 9000
    (tmp_path / ".env").write_bytes(b"ATTENDANT_REST_PORT=9000\n\xff")
    with pytest.raises(ConfigError, match=r"^\.env: not UTF-8\. Convert it\.$"):
        load_settings()


@pytest.mark.parametrize("variable", ["ATTENDANT_NONSENSE", "attendant_rest_prot", "ATTENDANT_"])
def test_unknown_variable_is_rejected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str) -> None:
    (tmp_path / ".env").write_text(f"{variable}=1\n")
    with pytest.raises(ConfigError, match=f"^{variable}: unknown option"):
        load_settings()
    (tmp_path / ".env").unlink()
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError, match=f"^{variable}: unknown option"):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("ATTENDANT_REST_PROT", "ATTENDANT_REST_PORT"), ("ATTENDANT_MAX_INPUT", "ATTENDANT_MAX_INPUTS"),
        ("ATTENDANT_PORT", "ATTENDANT_REST_PORT"), ("ATTENDANT_SERVICE_PORTS", None), ("ATTENDANT_SERVICE_HOSTS", None),
    ],
)  # fmt: skip
def test_unknown_variable_error_names_the_nearest_option(variable: str, nearest: str | None) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}: unknown option") as raised:
        load_settings(environ={variable: "8080"})
    assert nearest is None or f"Did you mean {nearest}?" in str(raised.value)


KUBERNETES = """
{0}_SERVICE_HOST=10.0.0.7
{0}_SERVICE_PORT=8080
{0}_SERVICE_PORT_HTTP=8080
{0}_SERVICE_PORT_GRPC_WEB=8081
{0}_PORT=tcp://10.0.0.7:8080
{0}_PORT_8080_TCP=tcp://10.0.0.7:8080
{0}_PORT_8080_TCP_PROTO=tcp
{0}_PORT_8080_TCP_PORT=8080
{0}_PORT_8080_TCP_ADDR=10.0.0.7
{0}_PORT_53_UDP=udp://10.0.0.7:53
"""


@pytest.mark.parametrize(
    "service", ["ATTENDANT", "ATTENDANT_REST", "ATTENDANT_GRPC", "ATTENDANT_ADMIN", "ATTENDANT_EU_1"]
)
@pytest.mark.parametrize("scheme", ["tcp", "udp"])
def test_variables_of_a_kubernetes_service_are_ignored(service: str, scheme: str) -> None:
    """Options in the same environment still apply."""
    lines = KUBERNETES.format(service).replace("_PORT=tcp:", f"_PORT={scheme}:").split()
    environ = dict(line.split("=", 1) for line in lines) | {"ATTENDANT_THREADS": "3"}
    settings = load_settings(environ=environ)
    assert (settings.rest_port, settings.grpc_port, settings.admin_port, settings.threads) == (8080, 8081, 8082, 3)
    assert settings == Settings(threads=3)


def test_environ_argument_replaces_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENDANT_REST_PORT", "9000")
    monkeypatch.setenv("ATTENDANT_NONSENSE", "1")
    assert load_settings(environ={"ATTENDANT_GRPC_PORT": "9001"}) == Settings(grpc_port=9001)
    assert Settings().rest_port == 8080


def test_drain_delay_must_be_below_the_timeout() -> None:
    """A longer delay would leave no time to drain."""
    with pytest.raises(
        ConfigError, match=r"^ATTENDANT_DRAIN_DELAY_MS: must be less than .*_TIMEOUT_MS \(500, limit 500\)"
    ):
        load_settings(environ={"ATTENDANT_DRAIN_DELAY_MS": "500", "ATTENDANT_DRAIN_TIMEOUT_MS": "500"})


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        load_settings(["--help"])
    output = capsys.readouterr().out
    assert raised.value.code == 0
    assert all(f"--{name.replace('_', '-')}" in output for name in VALUES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cors_origins", "https://a.example/"),
        ("cors_origins", "https://a.example,b.example"),
        ("cors_origins", "https://a.example/path"),
        ("allowed_hosts", "http://a"),
        ("allowed_hosts", "a:8080"),
        ("threads", "10000"),
    ],
)
def test_value_that_can_never_work_is_rejected(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"^ATTENDANT_{name.upper()}: "):
        load_settings([], environ={f"ATTENDANT_{name.upper()}": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cors_origins", "*"),
        ("cors_origins", " https://A.example , http://[::1]:3000,chrome-extension://abc "),
        ("allowed_hosts", "a.example, 10.0.0.1,::1,attendant"),
    ],
)
def test_lists_of_origins_and_hosts_are_accepted(name: str, value: str) -> None:
    settings = load_settings([], environ={f"ATTENDANT_{name.upper()}": value})
    assert getattr(settings, name) == value


def test_body_limit_depends_on_the_model_unless_set() -> None:
    assert Settings().request_bytes(2048) == Settings().max_request_bytes == 2**21
    assert Settings().request_bytes(2049) == 2**24
    assert load_settings([], environ={"ATTENDANT_MAX_REQUEST_BYTES": "5"}).request_bytes(8192) == 5


SOURCE = "owner/tiny@v1.0"


@pytest.mark.parametrize("arguments", [[SOURCE, "--threads", "3"], ["--threads", "3", SOURCE], ["--threads=3", SOURCE]])
def test_source_comes_before_or_after_options(arguments: list[str]) -> None:
    settings, source = load_serve_settings(arguments, {})
    assert (settings.threads, source) == (3, SOURCE)


def test_source_is_optional() -> None:
    assert load_serve_settings(["--no-docs"], {})[1] is None


def test_source_replaces_models_of_the_environment() -> None:
    environment = {"ATTENDANT_MODEL_DIR": "/srv/a", "ATTENDANT_MODELS": "b=/srv/b", "ATTENDANT_MODEL_ALIASES": "c"}
    settings, _ = load_serve_settings([SOURCE], environment)
    assert (settings.models, settings.model_fields_set) == ("", {"model_aliases"})


def test_alias_of_a_replaced_model_is_an_error() -> None:
    environment = {"ATTENDANT_MODELS": "b=/srv/b", "ATTENDANT_MODEL_ALIASES": "c=b"}
    with pytest.raises(ConfigError, match=r'^ATTENDANT_MODEL_ALIASES: "b" in "c=b" is not a name in ATTENDANT_MODELS'):
        load_serve_settings([SOURCE], environment)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([SOURCE, "--model-dir", "a"], "SOURCE and --model-dir both select a model: remove one"),
        (["--models=b=a", SOURCE], "SOURCE and --models both select a model: remove one"),
        ([SOURCE, "other"], "too many arguments (1 more than expected)"),
        ([""], "SOURCE is empty: name a model"),
    ],
)
def test_conflicting_arguments_are_rejected(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        load_serve_settings(arguments, {})
    assert capsys.readouterr().err == f"attendant serve: {message}. See: attendant serve --help\n"
