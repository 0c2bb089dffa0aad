"""Models that come and go: each change applies as a whole or not at all, and loses no request."""

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attendant_client.types import EvaluationRecord as ShownRecord
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from model.artifact.files import GOLDEN, WEIGHTS
from model.artifact.manifest import EvaluationRecord
from service import file_watch
from service.config import ConfigError, Settings
from service.engine import loading_memory
from service.engine.backends import cuda_memory
from service.engine.backends.base import Gpu
from service.engine.repository import ModelRepository
from service.errors import DefaultModelRequired, LoadFailed, NotFound, ServiceError, Unsupported
from service.metrics import Metrics
from tests.conftest import EXAMPLES
from tests.manifests import with_prompts
from tests.service.conftest import encode
from tests.service.engine.changing_models import (
    BROKEN,
    SOURCES,
    Serving,
    change_manifest,
    close,
    digest,
    models_file,
    open_serving,
)
from tests.service.engine.test_admission import make_late


@pytest.fixture
async def serving(fast_collection: None, artifacts: Path, tmp_path: Path) -> AsyncIterator[Serving]:
    opened = await open_serving(artifacts, tmp_path / "models.toml", "a=one", "b=two other")
    yield opened
    await close(opened)


async def test_changed_file_replaces_models(serving: Serving, artifacts: Path) -> None:
    one, two, three = (digest(artifacts, source) for source in SOURCES)
    assert serving.served == {"a": one, "b": two, "other": two}
    assert await serving.write("b=three", "c=one a2")
    assert serving.served == {"b": three, "c": one, "a2": one}
    assert [await serving.digest_of(name) for name in (None, "c", "a")] == [three, one, "MODEL_NOT_FOUND"]


async def test_request_in_progress_is_finished_by_the_replaced_model(serving: Serving) -> None:
    old = serving.models.find("a")
    old.acquire()
    assert await serving.write("a=three")
    assert (await encode(old, "money")).results
    old.release()
    await serving.repository._finish_retirements()
    with pytest.raises(ServiceError, match="shutting down"):
        await encode(old, "money")


async def test_requests_during_changes_are_neither_lost_nor_mixed(serving: Serving, artifacts: Path) -> None:
    digests = {digest(artifacts, source) for source in SOURCES}
    found: list[str] = []
    stop = asyncio.Event()

    async def send() -> None:
        while not stop.is_set():
            found.append(await serving.digest_of("a"))

    senders = [asyncio.create_task(send()) for _ in range(4)]
    for source in SOURCES * 3:
        assert await serving.write(f"a={source}")
    stop.set()
    await asyncio.gather(*senders)
    assert set(found) == digests


async def test_half_written_file_removes_no_model(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file cut off after a line is valid. Neither the watch nor a request to load a model uses it."""
    monkeypatch.setattr(file_watch, "SETTLE_S", 0.5)
    new = models_file(serving.root, "a=one", "b=two", "c=three")
    for apply in (serving.watch.check, lambda: serving.repository.load("b", "admin")):
        serving.path.write_text(new.rpartition("[[models]]")[0])
        change = asyncio.create_task(apply())
        await asyncio.sleep(0.1)
        serving.path.write_text(new)
        await change
        assert [*serving.served] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (("a=three", "b=broken"), r'"b": .*tokenizer\.json: size mismatch'),
        (("a=three", "b=none"), r'"b": .*none'),
        (("a=three sha256:" + 64 * "0", "b=two"), r'"a": .*not the pinned digest'),
        (("a=one", "a=two"), r'"a" is a name or alias of two models'),
    ],
)
async def test_failed_change_changes_nothing(
    serving: Serving, caplog: pytest.LogCaptureFixture, entries: tuple[str, ...], problem: str
) -> None:
    before = serving.served
    assert not await serving.write(*entries)
    assert serving.served == before
    assert serving.sample("reload_failing") == 1
    message = caplog.messages[-1]
    assert message.startswith("reload failed, nothing changes subject=models error=ATTENDANT_MODELS_FILE: ")
    assert re.search(problem, message)
    assert await serving.write("a=one", "b=two other")
    assert (serving.served, serving.sample("reload_failing")) == (before, 0)


async def test_failed_model_has_its_error_in_the_list_until_it_is_loaded(serving: Serving) -> None:
    assert not await serving.write("a=one", "b=broken")
    (state,) = [state for state in serving.repository.states if state.name == "b"]
    assert state.ready
    assert "size mismatch" in state.error
    assert await serving.write("a=one", "b=three")
    assert [state.error for state in serving.repository.states] == ["", ""]


async def test_damaged_copy_of_the_served_artifact_is_rejected(serving: Serving, tmp_path: Path) -> None:
    """A restart could not load it, although the server need not load anything now."""
    shutil.copytree(serving.root / "one", tmp_path / "copy")
    assert await serving.write(f"a={tmp_path / 'copy'}")
    with (tmp_path / "copy" / "tokenizer.json").open("a") as file:
        file.write(" ")
    assert not await serving.write(f"a={tmp_path / 'copy'}", "b=two")
    assert "size mismatch" in serving.repository.states[0].error
    serving.path.write_text(f"# {serving.versions - 1}\n" + models_file(serving.root, f"a={tmp_path / 'copy'}"))
    await serving.watch.check()  # the file in use is back
    assert [state.error for state in serving.repository.states] == [""]


async def test_changed_artifact_is_loaded_and_saved_measures_are_only_shown(
    serving: Serving, artifacts: Path, tmp_path: Path
) -> None:
    """`attendant evaluate --save` changes only the manifest."""
    root = tmp_path / "own"
    shutil.copytree(artifacts / "one", root / "one")
    serving.root = root
    assert await serving.write("a=one")
    engine = next(iter(serving.models))
    measure = EvaluationRecord(task="pairs", file="pairs.jsonl", measure="spearman", value=0.5, low=None, high=None)
    ShownRecord("pairs", "pairs.jsonl", "spearman", 0.5, None, None)
    new = change_manifest(root / "one", lambda manifest: manifest.model_copy(update={"evaluations": (measure,)}))
    await serving.watch.check()
    assert next(iter(serving.models)) is engine
    shown = ShownRecord("pairs", "pairs.jsonl", "spearman", 0.5, None, None)
    assert (engine.info.digest, engine.info.evaluations) == (f"sha256:{new}", [shown])
    change_manifest(root / "one", lambda manifest: with_prompts(manifest, {"query": "new"}))
    await serving.watch.check()
    assert next(iter(serving.models)) is not engine
    assert next(iter(serving.models)).info.prompts == {"query": "new"}


async def test_inaccurate_model_is_rejected(serving: Serving, artifacts: Path, tmp_path: Path) -> None:
    """The golden vectors are compared before the model gets requests."""
    shutil.copytree(artifacts / "three", tmp_path / "three")
    golden = json.loads((tmp_path / "three" / GOLDEN).read_text())
    golden["texts"] = golden["texts"][1:] + golden["texts"][:1]
    (tmp_path / "three" / GOLDEN).write_text(json.dumps(golden))
    change_manifest(tmp_path / "three", lambda manifest: with_prompts(manifest, {"query": "inaccurate"}))
    before = serving.served
    assert not await serving.write(f"a={tmp_path / 'three'}")
    assert serving.served == before
    assert "vectors differ from the export" in serving.repository.states[0].error


async def test_model_that_the_memory_cannot_hold_is_rejected(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading_memory, "available_memory", lambda: 10_000)
    before = serving.served
    assert not await serving.write("a=three", "b=two other")
    assert serving.served == before
    assert "not enough memory to load it beside the models in use" in serving.repository.states[0].error
    assert await serving.write("a=one b2", "b=two")  # loads nothing


async def test_unexpected_error_keeps_the_models(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of resources")

    monkeypatch.setattr(ModelRepository, "_load", fail)
    assert not await serving.write("a=three")
    assert serving.repository.states[0].error == "RuntimeError: out of resources"
    assert caplog.records[-2].exc_info is not None


async def test_unloaded_model_returns_when_it_is_loaded(serving: Serving, artifacts: Path) -> None:
    """A change of the file does not load it; the default model cannot be unloaded."""
    state = await serving.repository.unload("b", "admin")
    assert (state.ready, state.digest) == (False, "")
    assert await serving.digest_of("b") == await serving.digest_of("other") == "MODEL_NOT_FOUND"
    assert not (await serving.repository.unload("b", "admin")).ready
    assert await serving.write("a=three", "b=two other")
    assert await serving.digest_of("b") == "MODEL_NOT_FOUND"
    state = await serving.repository.load("b", "admin")
    assert (state.ready, state.digest) == (True, digest(artifacts, "two"))
    assert await serving.digest_of("other") == state.digest
    with pytest.raises(DefaultModelRequired):
        await serving.repository.unload("a", "admin")
    for operation in (serving.repository.load, serving.repository.unload):
        with pytest.raises(NotFound):
            await operation("other", "admin")  # an alias


async def test_unloaded_model_that_becomes_the_default_is_loaded(serving: Serving) -> None:
    await serving.repository.unload("b", "admin")
    assert await serving.write("b=two", "a=one")
    assert list(serving.served) == ["b", "a"]


async def test_failed_load_raises_and_stays_unloaded(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    await serving.repository.unload("b", "admin")
    serving.path.write_text(models_file(serving.root, "a=one", "b=broken"))
    with pytest.raises(LoadFailed, match=r'model not loaded \("b"\)\. ATTENDANT_MODELS_FILE: .*size mismatch'):
        await serving.repository.load("b", "admin")
    assert await serving.digest_of("b") == "MODEL_NOT_FOUND"
    assert re.search(r"model not loaded, nothing changes model=b error=.*size mismatch", caplog.messages[-1])
    assert serving.sample("reloads_total", result="error") == 1


async def test_model_is_loaded_beside_one_whose_files_are_damaged(
    serving: Serving, artifacts: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the artifact of the requested model is read. A request that changes nothing is not logged as a change."""
    caplog.set_level("INFO", "attendant.models")
    shutil.copytree(artifacts / "one", tmp_path / "own")
    assert await serving.write(f"a={tmp_path / 'own'}", "b=two other")
    await serving.repository.unload("b", "admin")
    change_manifest(tmp_path / "own", lambda manifest: with_prompts(manifest, {"query": "new"}))
    (tmp_path / "own" / WEIGHTS).write_bytes(b"damaged")
    await serving.watch.check()
    for _ in range(2):
        assert (await serving.repository.load("b", "admin")).ready
        assert "size mismatch" in serving.repository.states[0].error
    assert list(serving.served) == ["a", "b", "other"]
    changes = [line for line in caplog.messages if line.startswith("models changed")]
    assert changes[-1] == "models changed loaded=b removed= updated= names=a,b,other default=a"
    assert len([line for line in changes if "loaded=b" in line]) == 1


async def test_load_continues_if_its_client_disconnects(serving: Serving) -> None:
    await serving.repository.unload("b", "admin")
    request = asyncio.create_task(serving.repository.load("b", "admin"))
    while not serving.repository._changes:  # noqa: ASYNC110  # no event tells when a change begins
        await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert "b" not in serving.served
    await asyncio.gather(*serving.repository._changes)
    assert "b" in serving.served


async def test_metrics_of_removed_models_go_and_start_anew(serving: Serving) -> None:
    def series(model: str) -> set[str]:
        return {
            sample.name
            for family in serving.metrics.registry.collect()
            for sample in family.samples
            if sample.labels.get("model") == model
        }

    complete = series("b")
    assert await serving.write("a=one", "b=three")
    assert series("b") == complete  # of the model with the same name
    (info,) = [family for family in serving.metrics.registry.collect() if family.name == "attendant_model_info"]
    assert [sample.labels["model"] for sample in info.samples] == ["a", "b"]
    await serving.digest_of("b")
    assert await serving.write("a=one")
    await serving.repository._finish_retirements()
    assert series("b") == set()
    assert await serving.write("a=one", "b=three")
    assert series("b") == complete
    labels = {"api": "rest", "endpoint": "/v1/encode", "code": "200", "model": "b"}
    for count in (0, 1):
        assert serving.metrics.registry.get_sample_value("attendant_requests_total", labels) == count
        await serving.digest_of("b")


async def test_models_share_the_machine_as_they_come_and_go(serving: Serving) -> None:
    def speeds() -> list[float]:
        return [engine.fast_lane.admission.speed.value for engine in serving.models]

    alone = serving.models.find().fast_lane.admission._all_streams
    assert speeds() == [alone / 2, alone / 2]
    assert await serving.write("a=one")
    assert speeds() == [alone]
    assert await serving.write("a=one", "b=two", "c=three", "d=one")
    assert speeds() == [alone / 4] * 4
    assert len(serving.models.shared.fast_lanes) == 4


async def test_a_busy_loop_is_seen_by_models_without_requests(serving: Serving) -> None:
    first, second = serving.models
    make_late(first._host)
    assert second.fast_lane.near_capacity


async def test_limits_of_bodies_follow_the_models(serving: Serving, tmp_path: Path, artifacts: Path) -> None:
    """The limits cover all models, and are computed once for each set of models."""
    size = next(iter(serving.models)).manifest.max_input_tokens
    shutil.copytree(artifacts / "one", tmp_path / "longer", ignore=shutil.ignore_patterns(GOLDEN))
    change_manifest(tmp_path / "longer", lambda manifest: manifest.model_copy(update={"max_input_tokens": size + 1}))
    for limit in (64 * size, 64 * (size + 1)):
        rejected = await serving.client.post("/v1/encode", json={"inputs": "a" * (limit + 1)})
        assert (rejected.status_code, rejected.json()["error"]["maximum"]) == (413, limit)
        assert await serving.write(f"a={tmp_path / 'longer'}")


async def test_without_a_file_models_do_not_change(tiny_artifact: Path) -> None:
    metrics = Metrics(CollectorRegistry())
    repository = ModelRepository(Settings(model_dir=tiny_artifact), metrics)
    models = repository.start(repository.load_all())
    assert repository.watch() is None
    (state,) = repository.states
    assert (state.name, state.default, state.ready) == (models.find().name, True, True)
    for operation in (repository.load, repository.unload):
        with pytest.raises(Unsupported, match="ATTENDANT_MODELS_FILE"):
            await operation(state.name, "admin")
    await models.close()


async def test_refused_models_do_not_count_against_the_memory_of_the_gpu(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors refer to the frames that raised them, and so to what a model has taken."""
    counted = []

    def refuse(*arguments: object) -> None:
        counted.append(sum(model.bytes for model in cuda_memory.models))
        memory = cuda_memory.GpuMemory(Gpu(), 600)
        raise ConfigError(f"too inaccurate, after it took {memory.bytes}")

    cuda_memory.models.clear()
    monkeypatch.setattr("service.engine.repository.LoadedModel.load", refuse)
    for _ in range(3):
        assert not await serving.write("a=one", "b=three")
    assert counted == [0, 0, 0]


# Sequences of changes to the served models, compared with a model of the rules.

NAMES = ("a", "b", "c", "d")
entries = st.lists(
    st.tuples(
        st.sampled_from(NAMES[:3]), st.sampled_from((*SOURCES, BROKEN)), st.lists(st.sampled_from(NAMES), max_size=2)
    ),
    min_size=1,
    max_size=3,
)
operations = st.one_of(
    st.tuples(st.just("write"), entries),
    st.tuples(st.sampled_from(("load", "unload")), st.sampled_from(NAMES)),
)


@dataclass
class Expected:
    """The rules for changes, without their implementation: what is written, what applies, and what is unloaded."""

    written: list[tuple[str, str, list[str]]]
    applied: list[tuple[str, str, list[str]]]
    unloaded: set[str]

    def apply(self, unloaded: set[str]) -> bool:
        """Apply what is written, with these models unloaded, and return whether it is valid."""
        unloaded = unloaded - {self.written[0][0]}
        names = [name for own, _, aliases in self.written for name in (own, *aliases)]
        loaded = [source for name, source, _ in self.written if name not in unloaded]
        if len(set(names)) < len(names) or BROKEN in loaded:
            return False
        self.applied, self.unloaded = self.written, unloaded & {name for name, _, _ in self.written}
        return True

    @property
    def served(self) -> dict[str, str]:
        """The source of each name and alias, in order."""
        return {
            name: source
            for own, source, aliases in self.applied
            if own not in self.unloaded
            for name in (own, *aliases)
        }

    def outcome(self, operation: str, name: str) -> type[ServiceError] | None:
        """Return the error of loading or unloading a model, and note its effect if there is none."""
        if operation == "load":
            exists = name in [own for own, _, _ in self.written]
            if not self.apply(self.unloaded - {name} if exists else self.unloaded):
                return LoadFailed
            return None if exists else NotFound
        if name not in [own for own, _, _ in self.applied]:
            return NotFound
        if name == self.applied[0][0]:
            return DefaultModelRequired
        self.unloaded.add(name)
        return None


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(operations, min_size=1, max_size=6))
def test_every_sequence_of_changes_applies_each_as_a_whole(
    fast_collection: None, artifacts: Path, tmp_path: Path, changes: list[tuple[str, Any]]
) -> None:
    digests = {source: digest(artifacts, source) for source in SOURCES}

    async def run() -> None:
        serving = await open_serving(artifacts, tmp_path / "models.toml", "a=one")
        expected = Expected([("a", "one", [])], [("a", "one", [])], set())
        for kind, change in changes:
            if kind == "write":
                expected.written = change
                applied = await serving.write(*(f"{name}={source} {' '.join(more)}" for name, source, more in change))
                assert applied == expected.apply(expected.unloaded)
            else:
                error = expected.outcome(kind, change)
                operation = serving.repository.load if kind == "load" else serving.repository.unload
                with pytest.raises(error) if error else contextlib.nullcontext():
                    await operation(change, "admin")
            event(f"{kind} {len(expected.served)}")
            assert list(serving.served.items()) == [(name, digests[source]) for name, source in expected.served.items()]
            for name in NAMES:
                assert await serving.digest_of(name) == serving.served.get(name, "MODEL_NOT_FOUND")
        await close(serving)

    asyncio.run(run())
