"""The models file: its contents, and how changes are noticed."""

import asyncio
import logging
import re
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from model.artifact.names import NAME_FORMAT
from service.config import ConfigError, Settings, load_settings
from service.file_watch import FileWatch
from service.metrics import Metrics
from service.model_options import ModelOption
from service.models_file import ModelEntry, parse_models_file
from tests.conftest import run_python

PATH = Path("models.toml")
DIGEST = "0123456789abcdef" * 4


def parse(text: str) -> list[ModelEntry]:
    return list(parse_models_file(PATH, text.encode()))


def test_file_lists_models_in_order() -> None:
    small, large = parse(f"""
        [[models]]
        name = "small"
        source = "models/small"
        digest = "sha256:{DIGEST}"
        aliases = ["s", "text-embedding-3-small"]
        [[models]]
        name = "org/large"
        source = "org/large@main"
    """)
    assert (small.name, small.source, small.digest) == ("small", "models/small", f"sha256:{DIGEST}")
    assert small.aliases == ("s", "text-embedding-3-small")
    assert (large.name, large.source, large.digest, large.aliases) == ("org/large", "org/large@main", None, ())


ENTRY = '[[models]]\nname = "a"\nsource = "x"\n'


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"models: missing"),
        ("models = []", r"models: .*at least 1"),
        ("[[models]]\nname = 'a'", r"models\[0\]\.source: missing"),
        ("[[models]]\nsource = 'a'", r"models\[0\]\.name: missing"),
        (ENTRY + "source = 'y'", r"is not TOML \(Cannot overwrite a value"),
        (ENTRY + "sorce = 'y'", r"models\[0\]\.sorce: unknown key \(known: name, source, digest, aliases\)"),
        (ENTRY + "[model]", r"model: unknown key \(known: models\)"),
        (
            ENTRY + "[[models]]\nname = 'a b'\nsource = 'x'",
            r"models\[1\]\.name: must be up to 128 ASCII .* \(a b\)",
        ),
        (ENTRY + "aliases = ['a,b']", r"models\[0\]\.aliases\[0\]: must be up to 128 ASCII .* \(a,b\)"),
        (
            ENTRY + "digest = 'sha256:12'",
            r"models\[0\]\.digest: must be sha256: and 64 hexadecimal digits \(sha256:12\)",
        ),
        (ENTRY + "aliases = 'b'", r"models\[0\]\.aliases: must be a list"),
        (ENTRY + ENTRY, r'"a" is a name or alias of two models'),
        (ENTRY + "aliases = ['a']", r'"a" is a name or alias of two models'),
        ("\xff", r"is not TOML"),
    ],
)
def test_invalid_file_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(text)
    message = str(raised.value)
    assert re.match(f"ATTENDANT_MODELS_FILE: {PATH}:? {problem}", message), message
    assert message.endswith(".")


def test_file_that_is_not_utf8_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"ATTENDANT_MODELS_FILE: models\.toml is not UTF-8"):
        parse_models_file(PATH, b"\xff")


def test_server_exits_with_one_line_for_a_missing_file(tmp_path: Path) -> None:
    ended = run_python(
        "-m", "service", "serve", models_file=tmp_path / "none.toml", rest_port=0, grpc_port=0, admin_port=0
    )
    assert (ended.returncode, ended.stdout) == (78, "")
    assert "ATTENDANT_MODELS_FILE: cannot read" in ended.stderr


def served(**options: str) -> tuple[ModelOption, ...]:
    return Settings(**options).served_models


def test_models_have_names_digests_and_aliases() -> None:
    models = f"org/a=/srv/a@sha256:{DIGEST}, b = /srv/b=c@home ,"
    assert served(models=models, model_aliases="x,y=b,z = b", model_dir="/elsewhere") == (
        ModelOption(Path("/srv/a"), DIGEST, "org/a", ("x",)),
        ModelOption(Path("/srv/b=c@home"), None, "b", ("y", "z")),
    )


MODELS, ALIASES = "ATTENDANT_MODELS: ", "ATTENDANT_MODEL_ALIASES: "
NOT_A_MODEL = " is not name=directory. Separate models by commas."
NOT_A_NAME = f"a name {NAME_FORMAT} ({{}}). Choose another name."
NOT_A_DIGEST = 'the digest of "a" is not sha256: and 64 hexadecimal digits. Copy it from attendant-model verify.'
UNKNOWN = '"f" in "e=f" is not a name in ATTENDANT_MODELS. Add it there.'
TAKEN = '"c" is the name of a model or of another alias too. Rename one.'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"models": "a"}, f'{MODELS}"a"{NOT_A_MODEL}'),
        ({"models": "a="}, f'{MODELS}"a="{NOT_A_MODEL}'),
        ({"models": "=a"}, f'{MODELS}"=a"{NOT_A_MODEL}'),
        ({"models": "a b=c"}, MODELS + NOT_A_NAME.format("'a b'")),
        ({"models": "a=b,a=c"}, f'{MODELS}"a" is set twice. Rename one.'),
        ({"models": "a=b@sha256:12"}, MODELS + NOT_A_DIGEST),
        ({"models": f"a=@sha256:{DIGEST}"}, MODELS + NOT_A_DIGEST),
        ({"models": "a=b,c=d", "model_aliases": "e=f"}, ALIASES + UNKNOWN),
        ({"models": "a=b,c=d", "model_aliases": "c"}, ALIASES + TAKEN),
        ({"model_aliases": "c,c"}, ALIASES + TAKEN),
    ],
)
def test_invalid_list_is_an_error_of_its_option(options: dict[str, str], message: str) -> None:
    environ = {f"ATTENDANT_{name.upper()}": value for name, value in options.items()}
    with pytest.raises(ConfigError) as raised:
        load_settings(environ=environ)
    assert str(raised.value) == message


# Changes of files: applied once, and kept out of use while they are invalid.


class Source:
    """Content that can be read and applied unless it is "invalid" or "missing"."""

    def __init__(self) -> None:
        self.content = "one"
        self.applied: list[str] = []
        self.metrics = Metrics(CollectorRegistry())
        self.watch = FileWatch("tls", self.metrics, "one", self.read, self.apply)

    def read(self) -> str:
        if self.content == "missing":
            raise ConfigError("missing")
        return self.content

    async def apply(self, content: str) -> None:
        self.applied.append(content)
        if content == "invalid":
            raise ConfigError(content)
        if content == "defect":
            raise ZeroDivisionError

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"attendant_{name}", {"subject": "tls", **labels})

    @property
    def reloads(self) -> list[float | None]:
        return [self.sample("reloads_total", result=result) for result in ("success", "error")]


@pytest.fixture
async def source() -> Source:
    return Source()


async def test_each_change_is_applied_once(source: Source) -> None:
    for content in ("one", "two", "two", "one"):
        source.content = content
        await source.watch.check()
    assert source.applied == ["two", "one"]
    assert source.reloads == [2, 0]


async def test_content_that_is_being_written_is_not_applied(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["one, t", "one, two", "one, two, th", "one, two, three", "one, two, three"])
    monkeypatch.setattr(source, "read", lambda: next(versions))
    source.watch = FileWatch("tls", source.metrics, "one", source.read, source.apply)
    await source.watch.check()
    assert (source.applied, source.reloads) == (["one, two, three"], [1, 0])


async def test_missing_content_is_reported_once(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.content = "missing"
    for _ in range(3):
        await source.watch.check()
    assert (source.reloads, source.sample("reload_failing"), len(caplog.records)) == ([0, 1], 1, 1)
    assert caplog.messages == ["reload failed, nothing changes subject=tls error=missing"]
    source.content = "one"
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            await source.watch.check()
    assert (source.reloads, source.sample("reload_failing"), source.applied) == ([0, 1], 0, [])
    assert caplog.messages[1:] == ["the content in use is back, the reload no longer fails subject=tls"]


async def test_unexpected_error_does_not_end_the_watch(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    source.content = "defect"
    for _ in range(2):
        await source.watch.check()
    assert (source.reloads, source.sample("reload_failing")) == ([0, 1], 1)
    (record,) = caplog.records
    assert record.getMessage() == "reload failed, nothing changes subject=tls error=unexpected ZeroDivisionError"
    assert record.exc_info
    source.content = "two"
    await source.watch.check()
    assert (source.applied[-1], source.reloads, source.sample("reload_failing")) == ("two", [1, 1], 0)


async def test_invalid_content_is_retried_later_and_reported_once(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed load of a model takes seconds of CPU time: the time between two attempts doubles, up to a minute."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    source.content = "invalid"
    attempts = []
    for second in range(200):
        now = 1000.0 + second
        before = len(source.applied)
        await source.watch.check()
        if len(source.applied) > before:
            attempts.append(second)
    assert attempts == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert source.reloads == [0, 1]
    source.content = "two"
    await source.watch.check()
    assert (source.applied[-1], source.reloads, source.sample("reload_failing")) == ("two", [1, 1], 0)


async def test_request_retries_at_once(source: Source) -> None:
    source.content = "invalid"
    await source.watch.check()
    await source.watch.check()
    assert source.applied == ["invalid"]
    source.watch.request()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await source.watch.run()
    assert source.applied == ["invalid", "invalid"]
