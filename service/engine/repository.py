"""The models to serve: loaded at startup, and replaced while requests continue."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from model.artifact.files import MANIFEST, Artifact, ArtifactError
from model.artifact.manifest import Manifest
from model.artifact.names import MAX_CHARACTERS, NAME_FORMAT, SourceError, is_model_name, restricts_commercial_use
from service.config import PREFIX, ConfigError, Settings, read_option_file
from service.engine.engine import Engine, Models
from service.engine.loading_memory import check_memory
from service.engine.model_loader import LoadedModel
from service.errors import DefaultModelRequired, LoadFailed, NotFound, Unsupported, echo
from service.exporter import ExportError
from service.file_watch import FileWatch, read_settled
from service.metrics import Metrics
from service.model_cache import cache_directory, prepare_artifact, source_state
from service.models_file import OPTION, ModelEntry, configured_models, parse_models_file
from service.process import clear_frames, lower_thread_priority, release_memory, run_in_thread
from service.spelling import join

RELOAD_SUBJECT = "models"

FileState = tuple[bytes, tuple[str, ...]]
"""The content of the models file, and the state of each source in it."""

log = logging.getLogger("attendant.models")


@dataclass(frozen=True)
class ModelState:
    """A model of the models file, and whether it is served.

    Attributes:
        name: its served name.
        aliases: its other names.
        source: the directory or Hugging Face model ID to load it from.
        default: whether requests that name no model use it.
        ready: whether it is being served.
        loading: whether it or its replacement is being loaded.
        digest: the digest of the served artifact; empty unless `ready`.
        error: why the latest attempt to load it failed; empty otherwise.
    """

    name: str
    aliases: tuple[str, ...]
    source: str
    default: bool
    ready: bool
    loading: bool = False
    digest: str = ""
    error: str = ""


@dataclass(frozen=True)
class ModelsState:
    """The models in use, for a replacement worker to serve.

    Attributes:
        content: the models file; empty without one.
        unloaded: the names of its models that are not served.
        served: the `computation_digest` of each model that is served, by its name; empty if no worker serves.
    """

    content: str = ""
    unloaded: Sequence[str] = ()
    served: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelsChange:
    """A change of the served models: load the models in `content` from the current artifacts, or unload `unload`.

    Attributes:
        content: a models file; empty to unload a model.
        load: the only model to reread, besides models whose entries have changed; empty to reread all.
        unload: the model to unload.
    """

    content: str = ""
    load: str = ""
    unload: str = ""


@dataclass(frozen=True)
class Prepared:
    """A change that is ready to commit. Attributes are as in `ModelsChange` and `ModelRepository`."""

    change: ModelsChange
    entries: Sequence[ModelEntry] = ()
    unloaded: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    opened: "Sequence[tuple[ModelEntry, LoadedModel | Kept]]" = ()


@dataclass(frozen=True)
class Kept:
    """The manifest of an artifact that computes the same results as the served artifact."""

    manifest: Manifest
    digest: str


class ModelRepository:
    """Loads the configured models. With a models file, also changes them while the server runs.

    Construct it on the event loop. A change is atomic: `prepare` opens the new models, then `commit` or `abort`
    follows. With several workers, the supervisor calls these methods in every worker.

    Attributes:
        coordinate: requests a change in all workers; raises `ConfigError`. None for a server with one process.
    """

    def __init__(self, settings: Settings, metrics: Metrics, state: ModelsState | None = None) -> None:
        """`state`: what to serve in place of the contents of the models file."""
        self._settings = settings
        self._metrics = metrics
        self.coordinate: Callable[[ModelsChange], Awaitable[None]] | None = None
        self._models: Models | None = None
        self._state: FileState = b"" if state is None else state.content.encode(), ()
        self._entries: Mapping[str, ModelEntry] = {}
        self._unloaded: frozenset[str] = frozenset(() if state is None else state.unloaded)
        self._served_elsewhere = {} if state is None else state.served
        self._prepared: Prepared | None = None
        self._errors: dict[str, str] = {}
        self._loading = ""
        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self._retirements: set[asyncio.Task[None]] = set()

    def load_all(self) -> list[tuple[ModelEntry, LoadedModel]]:
        """Load the configured models. Takes seconds per model, or minutes if the model must be exported first.

        Raises `ArtifactError`, `ConfigError`, `ExportError` or `SourceError`. Call it in a thread.
        """
        lower_thread_priority()  # inherited by the runtimes' inference threads
        settings = self._settings
        ignored = settings.model_fields_set & {"model_dir", "model_digest"}
        option = "ATTENDANT_MODELS"
        if settings.models_file is not None:
            self._state = self._read_state(self._state[0])
            ignored = settings.model_fields_set & {"model_dir", "model_digest", "models", "model_aliases"}
            option = OPTION
        elif not settings.models:
            ignored = set()
        if ignored:
            names = ",".join(f"{PREFIX}{name.upper()}" for name in sorted(ignored))
            log.info("options ignored options=%s reason=%s", names, option)
        entries = (
            configured_models(settings)
            if settings.models_file is None
            else parse_models_file(settings.models_file, self._state[0])
        )
        self._entries = {entry.name: entry for entry in entries if entry.name is not None}

        def load(entry: ModelEntry) -> LoadedModel:
            try:
                return self._load(entry, self._find_directory(entry))
            except (ArtifactError, ConfigError, ExportError, SourceError) as error:
                raise ArtifactError(f'{option}: "{entry.name}": {error}' if entry.name else str(error)) from None

        loaded = [(entry, load(entry)) for entry in entries if entry.name not in self._unloaded]
        self._compare_with_other_workers(
            {entry.name or model.artifact.manifest.name: model.artifact for entry, model in loaded}
        )
        return loaded

    def _compare_with_other_workers(self, artifacts: Mapping[str, Artifact]) -> None:
        """Detect artifacts that were replaced after other workers loaded them.

        With a models file, the file watch then updates all workers. Raises `ArtifactError` without a models file.
        """
        served = self._served_elsewhere
        replaced = [
            artifact
            for name, artifact in artifacts.items()
            if served and computation_digest(artifact.manifest) != served.get(name)
        ]
        if replaced and self._settings.models_file is None:
            raise ArtifactError(
                f"{replaced[0].root}: replaced since the other workers loaded it. Restart the server, so that all of "
                "them serve the same model, or restore the artifact."
            )
        if replaced:
            self._state = self._state[0], ()

    def start(self, loaded: Sequence[tuple[ModelEntry, LoadedModel]]) -> Models:
        """Start an engine for each model. Call it on the event loop."""
        self._models = Models([])
        self._publish(loaded)
        return self._models

    def watch(self) -> FileWatch[FileState] | None:
        """Return the watch that applies changes of the models file and its artifacts; None without a models file."""
        path = self._settings.models_file
        if path is None:
            return None

        async def apply(state: FileState) -> None:
            parse_models_file(path, state[0])
            await self._change(ModelsChange(state[0].decode()))

        return FileWatch(RELOAD_SUBJECT, self._metrics, self._state, self._read_state, apply, self._errors.clear)

    @property
    def states(self) -> list[ModelState]:
        """The models in the models file, or the models that other options select. The default model comes first."""
        served = {} if self._models is None else {engine.name: engine for engine in self._models}
        entries = self._entries or {name: ModelEntry(source=engine.info.source) for name, engine in served.items()}
        return [
            ModelState(
                name,
                tuple(served[name].info.aliases) if name in served else entry.aliases,
                entry.source,
                default=name == next(iter(served), None),
                ready=name in served,
                loading=name == self._loading,
                digest=served[name].info.digest if name in served else "",
                error=self._errors.get(name, ""),
            )
            for name, entry in entries.items()
        ]

    def find(self, name: str) -> ModelState:
        """Return the state of a model; raises `NotFound`."""
        state = next((state for state in self.states if state.name == name), None)
        if state is None:
            names = join([f'"{known.name}"' for known in self.states])
            raise NotFound(
                "not found", f"The models are {names}.", field="name", actual=echo(name), reason="MODEL_NOT_FOUND"
            )
        return state

    async def load(self, name: str, admin: str) -> ModelState:
        """Load a model of the models file from the current file and artifact. Return the new state.

        `admin`: the name of the admin who requests it, for the log.

        Raises `NotFound`, `LoadFailed`, or `Unsupported` without a models file.
        """
        path = self._require_file()
        log.info("model load requested model=%s admin=%s", echo(name), admin)
        with self._reports_failure(name, "loaded"):
            content = await read_settled(
                lambda: read_option_file(OPTION, path),
                lambda content: [*parse_models_file(path, content)] == [*self._entries.values()],
            )
            change = asyncio.create_task(self._change(ModelsChange(content.decode(), load=name)))
            self._changes.add(change)
            change.add_done_callback(self._changes.discard)
            await asyncio.shield(change)  # continues even if the client disconnects
        return self.find(name)

    async def unload(self, name: str, admin: str) -> ModelState:
        """Stop serving a model until it is loaded again or the server restarts. Return the new state.

        `admin`: the name of the admin who requests it, for the log.

        Raises `NotFound`, `DefaultModelRequired`, `LoadFailed` if another worker cannot do it, or `Unsupported` without
        a models file.
        """
        self._require_file()
        log.info("model unload requested model=%s admin=%s", echo(name), admin)
        self._check_unload(name)
        with self._reports_failure(name, "unloaded"):
            await self._change(ModelsChange(unload=name))
        return self.find(name)

    @contextlib.contextmanager
    def _reports_failure(self, name: str, change: str) -> Iterator[None]:
        """Raise `LoadFailed` if a requested change fails with a `ConfigError`."""
        try:
            yield
        except ConfigError as error:
            self._metrics.reloads.labels(RELOAD_SUBJECT, "error").inc()
            log.error("model not %s, nothing changes model=%s error=%s", change, echo(name), error)
            raise LoadFailed(f"model not {change}", str(error), field="name", actual=echo(name)) from None

    def _check_unload(self, name: str) -> None:
        """Raise `NotFound` or `DefaultModelRequired` if a model cannot be unloaded."""
        if self.find(name).default:
            raise DefaultModelRequired(
                "default model, cannot be unloaded",
                "Put another model first in the models file.",
                field="name",
                actual=echo(name),
            )

    def _require_file(self) -> Path:
        if self._settings.models_file is None:
            raise Unsupported("Models cannot be loaded or unloaded", f"Set {OPTION}, and restart.")
        return self._settings.models_file

    def _read_state(self, content: bytes = b"") -> FileState:
        """Return the state of the models file, or of `content` if given."""
        path = self._settings.models_file
        assert path is not None
        content = content or read_option_file(OPTION, path)
        return content, tuple(source_state(entry.source) for entry in parse_models_file(path, content))

    async def _change(self, change: ModelsChange) -> None:
        """Make a change in all workers or none. Raises the errors of `prepare`."""
        if self.coordinate is not None:
            await self.coordinate(change)
            return
        await self.prepare(change)
        self.commit()

    @property
    def models_state(self) -> ModelsState:
        """The models that are served."""
        served = {engine.name: computation_digest(engine.manifest) for engine in self._models or ()}
        return ModelsState(self._state[0].decode(), sorted(self._unloaded), served)

    async def prepare(self, change: ModelsChange) -> None:
        """Open the models of a change. No other change can begin before `commit` or `abort`.

        With `load`, the artifacts of other served models with unchanged entries are not read, since they may be
        damaged.

        Raises `ConfigError` if a model cannot be loaded, and the errors of `unload`.
        """
        await self._lock.acquire()
        try:
            await self._finish_retirements()
            if change.unload:
                self._check_unload(change.unload)
                self._prepared = Prepared(change)
            else:
                path = self._require_file()
                self._prepared = await self._prepare(change, parse_models_file(path, change.content.encode()))
        except BaseException:
            self._lock.release()
            raise

    async def _prepare(self, change: ModelsChange, entries: Sequence[ModelEntry]) -> Prepared:
        assert self._models is not None
        load = change.load
        unloaded = self._unloaded - {entries[0].name, load}  # the default model is always served
        served = {engine.name: engine for engine in self._models}
        wanted = [entry for entry in entries if entry.name not in unloaded]
        unread: set[str] = set()
        opened: list[tuple[ModelEntry, LoadedModel | Kept]] = []
        for entry in wanted:
            engine = served.get(entry.name or "")
            if load and engine is not None and engine.name != load and entry == self._entries.get(engine.name):
                unread.add(engine.name)
                opened.append((entry, Kept(engine.manifest, engine.digest)))
            else:
                opened.append((entry, await self._open(entry, engine)))
        return Prepared(change, entries, frozenset(unloaded), frozenset(unread), opened)

    def commit(self) -> None:
        """Make the prepared change."""
        prepared, self._prepared = self._prepared, None
        assert prepared is not None
        assert self._models is not None
        try:
            if name := prepared.change.unload:
                self._unloaded |= {name}
                self._retire(self._models.replace([engine for engine in self._models if engine.name != name]))
                log.info("model unloaded model=%s", name)
                return
            self._state = prepared.change.content.encode(), ()
            self._entries = {entry.name: entry for entry in prepared.entries if entry.name is not None}
            self._unloaded = prepared.unloaded & self._entries.keys()
            for name in self._errors.keys() - prepared.unread:
                del self._errors[name]
            self._publish(prepared.opened)
        finally:
            self._lock.release()

    def abort(self) -> None:
        """Discard the prepared change."""
        self._prepared = None
        self._lock.release()
        asyncio.get_running_loop().call_soon(release_memory)

    async def _open(self, entry: ModelEntry, engine: Engine | None) -> LoadedModel | Kept:
        """Load the model of an entry unless `engine` already runs it. Raises `ConfigError`."""
        name = self._loading = entry.name or ""
        try:
            return await run_in_thread(lambda: self._open_changed(entry, engine))
        except (ArtifactError, ConfigError, ExportError, SourceError) as error:
            clear_frames(error)
            self._errors[name] = str(error)
            raise ConfigError(f'{OPTION}: "{name}": {error}') from None
        except Exception as error:
            log.exception("model load failed model=%s", name)
            clear_frames(error)
            self._errors[name] = f"{type(error).__name__}: {error}"
            raise ConfigError(f'{OPTION}: "{name}": cannot be loaded ({type(error).__name__}). See the log.') from None
        finally:
            self._loading = ""

    def _open_changed(self, entry: ModelEntry, engine: Engine | None) -> LoadedModel | Kept:
        lower_thread_priority()
        directory = self._find_directory(entry)
        artifact = Artifact.open(directory, entry.digest)  # verify the files: a restart must be able to load them
        manifest = artifact.manifest
        if engine is not None and without_measures(manifest) == without_measures(engine.manifest):
            return Kept(manifest, artifact.digest)
        check_memory(manifest)
        return self._load(entry, directory)

    def _find_directory(self, entry: ModelEntry) -> Path:
        """Return the directory of an entry's artifact. Sources in the models file are exported if necessary."""
        if self._settings.models_file is None:
            return Path(entry.source)
        return prepare_artifact(entry.source, cache_directory(self._settings.cache_dir))

    def _load(self, entry: ModelEntry, directory: Path) -> LoadedModel:
        if entry.name is None:
            _check_name(directory, Artifact.read_manifest(directory)[0].name)
        loaded = LoadedModel.load(self._settings, entry.option(directory))
        manifest = loaded.artifact.manifest
        if restricts_commercial_use(manifest.license):
            log.warning(
                "license restricts commercial use model=%s license=%s", entry.name or manifest.name, manifest.license
            )
        return loaded

    def _publish(self, opened: Sequence[tuple[ModelEntry, LoadedModel | Kept]]) -> None:
        """Switch to these models, and retire the others."""
        assert self._models is not None
        served = {engine.name: engine for engine in self._models}
        engines, loaded, updated = [], [], []
        for entry, model in opened:
            if isinstance(model, LoadedModel):
                option = entry.option(model.artifact.root)
                engine = Engine(model, self._settings, self._metrics, option, self._models.shared)
                loaded.append(engine.name)
            else:
                engine = served[entry.name or ""]
                before = engine.info
                engine.describe(model.manifest, model.digest, entry.aliases)
                if engine.info != before:
                    updated.append(engine.name)
            engines.append(engine)
            info = engine.info
            self._metrics.describe_model(info.name, info.digest, info.provider, info.precision)
        removed = self._models.replace(engines)
        self._retire(removed)
        gone = [engine.name for engine in removed if engine.name not in loaded]
        order = [engine.name for engine in engines]
        if served and (loaded or gone or updated or order != list(served)):
            names = [name for engine in engines for name in (engine.name, *engine.info.aliases)]
            lists = [",".join(items) for items in (loaded, gone, updated, names)]
            log.info("models changed loaded=%s removed=%s updated=%s names=%s default=%s", *lists, order[0])

    def _retire(self, engines: Sequence[Engine]) -> None:
        for engine in engines:
            task = asyncio.create_task(self._close(engine))
            self._retirements.add(task)
            task.add_done_callback(self._retirements.discard)

    async def _close(self, engine: Engine) -> None:
        """Close an engine once no request uses it, and free its memory."""
        assert self._models is not None
        await self._models.retire(engine)
        name = engine.name
        if all(name != other.name for other in self._models):
            self._metrics.remove_model(name)
        del engine
        asyncio.get_running_loop().call_soon(release_memory)  # deferred: this task's frame references the engine

    async def _finish_retirements(self) -> None:
        """Wait until replaced models are closed, to keep at most two generations in memory."""
        if self._retirements:
            await asyncio.wait(self._retirements)


def without_measures(manifest: Manifest) -> Manifest:
    """Return a manifest without the measurements that `attendant evaluate --save` adds, which do not affect results."""
    return manifest.model_copy(update={"evaluations": ()})


def computation_digest(manifest: Manifest) -> str:
    """Return the SHA-256 of the part of a manifest that affects results, in hexadecimal."""
    return hashlib.sha256(without_measures(manifest).model_dump_json().encode()).hexdigest()


def _check_name(directory: Path, name: str) -> None:
    """Raise `ArtifactError` unless a model can be served under the name in its manifest."""
    if not is_model_name(name):
        raise ArtifactError(
            f"{directory / MANIFEST}: the name {NAME_FORMAT} ({name[:MAX_CHARACTERS]!r}). Serve it under another name: "
            f"--models NAME={directory}"
        )
