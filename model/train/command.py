"""The train command: trains a tokenizer and a model, publishes the model and exports it."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from model.artifact.files import Artifact, ArtifactError, locked
from model.artifact.manifest import Manifest, TrainingRecord
from model.artifact.tokenizer import Tokenizer
from model.checkpoint import Checkpoint, load_checkpoint
from model.export.export import export
from model.source.hub import ModelSource, SourceError, locate
from model.source.sentence_transformers import SettingOptions
from model.train.config import TrainConfig, TrainError, load_config
from model.train.loop import CURVES, Processes, check_same_options, draw_curves, options_of, select_precision, train
from model.train.objectives import make_objective, make_reader
from model.train.publication import make_record, publish
from model.train.tokenizers import train_tokenizer, without_long_words

OPTIONS, TOKENIZER, MODEL, ARTIFACT = "options.json", "tokenizer.json", "model", "artifact"

Progress = Callable[[str], None]


def run_training(config_file: Path, out: Path, progress: Progress) -> Manifest | None:
    """Train, publish and export the model of a configuration; an interrupted run resumes from its last checkpoint.

    Files in `out`: `options.json`, `tokenizer.json`, `checkpoint.pt`, `metrics.csv`, `curves.png`, `model/` for
    transformers and sentence-transformers, and `artifact/` for the server.

    Returns:
        The manifest of the artifact; None in all processes but the first.

    Raises:
        TrainError: an option or file is invalid, or the run failed.
        SourceError, CheckpointError: the model `init` is unavailable or unsupported.
        ArtifactError: the teacher's artifact is invalid, or the result cannot be written.
    """
    config = load_config(config_file)
    for path in (*config.data.train, *config.data.validation):
        if not path.is_file():
            raise TrainError(f"{config_file}: data: {path}: no such file. Correct the path.")
    if out.exists() and not out.is_dir():
        raise TrainError(f"{out}: not a directory. Choose another path.")
    out.mkdir(parents=True, exist_ok=True)
    processes = Processes.start()
    try:
        with ExitStack() as held:
            if processes.is_first:
                try:
                    held.enter_context(locked(out, wait=False))
                except BlockingIOError:  # both processes would write the same files
                    raise TrainError(f"{out}: in use by another process. Wait for its end.") from None
            return _run(config, out, processes, progress)
    finally:
        processes.stop()


def _run(config: TrainConfig, out: Path, processes: Processes, progress: Progress) -> Manifest | None:
    source, checkpoint = load_init(config)
    if checkpoint is not None and "max_input_tokens" not in config.model.model_fields_set:
        limit = min(config.model.max_input_tokens, checkpoint.max_input_tokens)
        config = config.model_copy(update={"model": config.model.model_copy(update={"max_input_tokens": limit})})
    if processes.is_first:
        _start_run(config, checkpoint, out, progress)
    processes.wait()
    definition = (out / TOKENIZER).read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer(definition.encode())
    except Exception as error:  # noqa: BLE001  # tokenizers raises Exception
        raise TrainError(f"{out / TOKENIZER}: damaged ({error}). Remove {out} to start again.") from None
    objective = make_objective(config, tokenizer, checkpoint)
    start = "" if source is None else f", starting from {source.source}"
    progress(f"{objective.name} of {config.model.name} on {processes.device}{start}")
    result = train(config, objective, tokenizer, out, processes)
    if not processes.is_first:
        return None
    progress(f"validation loss {result.validation_loss:.4f} {objective.unit}")
    initial = None if source is None else source.source
    record = make_record(objective, config, result, select_precision(config, processes.device), initial)
    if _is_exported(out / ARTIFACT, record):
        progress(f"{out / ARTIFACT} is up to date")
        return Artifact.open(out / ARTIFACT).manifest
    init = None if source is None or checkpoint is None else (source, checkpoint)
    publish(objective, config, definition, record, out / MODEL, init)
    draw_curves(out, objective.unit)
    progress(f"wrote {out / MODEL} and {out / CURVES}")
    return export(
        str(out / MODEL), out / ARTIFACT, revision=None, name=config.model.name, progress=progress, overwrite=True
    )


def _start_run(config: TrainConfig, checkpoint: Checkpoint | None, out: Path, progress: Progress) -> None:
    """Write the options and the tokenizer of a new run. Raises TrainError if the directory contains another run."""
    path, options = out / OPTIONS, options_of(config)
    if path.is_file():
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise TrainError(f"{path}: damaged. Remove {out} to start again.") from None
        check_same_options(options, saved, out)
    else:
        path.write_text(json.dumps(options, indent=1) + "\n", encoding="utf-8")
    if (out / TOKENIZER).is_file():
        return
    if checkpoint is None:
        progress(f"training a {config.tokenizer.kind} tokenizer")
        write_tokenizer(config, out / TOKENIZER)
    else:
        (out / TOKENIZER).write_bytes(checkpoint.tokenizer)


def _is_exported(artifact: Path, record: TrainingRecord) -> bool:
    """Return whether a valid artifact contains this record, so that its evaluations can be kept."""
    try:
        return Artifact.open(artifact).manifest.training == record
    except ArtifactError:
        return False


def load_init(config: TrainConfig) -> tuple[ModelSource, Checkpoint] | tuple[None, None]:
    """Return the model that training starts from, if any. Raises SourceError or CheckpointError."""
    if config.model.init is None:
        return None, None
    try:
        source = locate(config.model.init)
    except SourceError as error:
        raise TrainError(f"model.init: {error} Paths are relative to the configuration.") from None
    return source, load_checkpoint(source.directory, SettingOptions(source=source.source))


def write_tokenizer(config: TrainConfig, path: Path) -> None:
    """Train the tokenizer on the training texts and write it atomically."""
    read = make_reader(config)

    def texts() -> Iterator[str]:
        every = (text for file in config.data.train for example in read(file) for text in example.texts)
        return (without_long_words(text) for text in islice(every, config.tokenizer.max_texts))

    tokenizer = train_tokenizer(config.tokenizer, texts)
    # Indented for readability.
    definition = json.dumps(json.loads(tokenizer.to_str()), indent=1, ensure_ascii=False)
    temporary = path.with_suffix(".new")
    try:
        temporary.write_text(definition, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise TrainError(f"{path}: cannot be written ({error.strerror}). Check the directory.") from None
