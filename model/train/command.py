"""From a configuration to an artifact: train the tokenizer and the encoder, publish the model, export it."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from model.artifact import Manifest
from model.export import export
from model.tokenizer import Tokenizer
from model.train.config import TrainConfig, TrainError, load_config
from model.train.corpus import read_texts
from model.train.loop import train
from model.train.metrics import CURVES, draw_curves
from model.train.processes import Processes
from model.train.publication import publish
from model.train.tokenizers import train_tokenizer

TOKENIZER, MODEL, ARTIFACT = "tokenizer.json", "model", "artifact"

Progress = Callable[[str], None]


def run_training(config_file: Path, out: Path, progress: Progress) -> Manifest | None:
    """Train the model of a configuration in the directory `out`, which gets these files.

    `tokenizer.json`, `checkpoint.pt`, `metrics.csv`, `curves.png`, `model/` for transformers and sentence-transformers,
    and `artifact/` for the server. A run that was interrupted continues from its last checkpoint.

    Returns:
        The manifest of the artifact; None in all processes but the first.

    Raises:
        TrainError: an option or file is invalid, or the run failed.
    """
    config = load_config(config_file)
    out.mkdir(parents=True, exist_ok=True)
    processes = Processes.start()
    try:
        if processes.is_first and not (out / TOKENIZER).is_file():
            progress(f"training a {config.tokenizer.kind} tokenizer")
            write_tokenizer(config, out / TOKENIZER)
        processes.wait()
        definition = (out / TOKENIZER).read_text(encoding="utf-8")
        tokenizer = Tokenizer(definition.encode())
        progress(f"training {config.model.name} with {tokenizer.vocab_size} tokens on {processes.device}")
        result = train(config, tokenizer, out, processes)
        if not processes.is_first:
            return None
        progress(f"validation loss {result.validation_loss:.4f}, perplexity {result.perplexity:.2f}")
        publish(result.network, config.model, definition, out / MODEL)
        draw_curves(out)
        progress(f"wrote {out / MODEL} and {out / CURVES}")
        return export(str(out / MODEL), out / ARTIFACT, revision=None, name=config.model.name, progress=progress)
    finally:
        processes.stop()


def write_tokenizer(config: TrainConfig, path: Path) -> None:
    """Train the tokenizer on the training texts and write it atomically."""

    def texts() -> Iterator[str]:
        every = (text for file in config.data.train for text in read_texts(file, config.data.field))
        return islice(every, config.tokenizer.max_texts)

    tokenizer = train_tokenizer(config.tokenizer, texts)
    # Indented, so that a person can read it.
    definition = json.dumps(json.loads(tokenizer.to_str()), indent=1, ensure_ascii=False)
    temporary = path.with_suffix(".new")
    try:
        temporary.write_text(definition, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise TrainError(f"{path}: cannot be written ({error.strerror}). Check the directory.") from None
