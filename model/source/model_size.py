"""Model size estimated from config.json alone, without torch or weights, for any encoder with the usual keys."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model.artifact.memory import available_memory
from model.artifact.names import HubId, SourceError, parse_hub_id
from model.source.known_models import HIDDEN, KNOWN_MODELS, LAYERS, Task

HEADS = ("num_attention_heads", "n_heads", "n_head", "num_heads")
FEED_FORWARD = ("intermediate_size", "hidden_dim", "n_inner", "d_ff")
POSITIONS = ("max_position_embeddings", "n_positions")
GATED = ("eurobert", "gemma3_text", "llama", "mistral", "modernbert", "new", "nomic_bert", "qwen2", "qwen3")
"""Architectures with gated feed-forward layers, which have a third matrix."""
WITHOUT_TABLE = (*GATED, "t5", "mt5", "deberta-v2")
"""Architectures without a position table."""
DEFAULT_POSITIONS = {"modernbert": 8192, "eurobert": 2048, "new": 2048}
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet")
CONFIG, LENGTHS = "config.json", "sentence_bert_config.json"
MAX_FILE_BYTES = 2**20
TIMEOUT_S = 10.0
MAX_NUMBER = 2**31


@dataclass(frozen=True)
class ModelSize:
    """The numbers that determine a model's cost.

    `layer_weights` is the number of matrix elements that a layer multiplies each token by, and `attention_size` the
    number of heads times the head size. `parameters` includes the `table` of tokens and positions.
    """

    name: str
    num_hidden_layers: int
    hidden_size: int
    attention_size: int
    layer_weights: int
    parameters: int
    table: int
    max_input_tokens: int


def relative_cost(size: ModelSize, tokens: int = 128) -> float:
    """Return the number of operations per text, relative to all-MiniLM-L6-v2."""

    def operations(layers: int, weights: int, attention: int) -> int:
        return layers * (2 * weights + 4 * tokens * attention)

    own = operations(size.num_hidden_layers, size.layer_weights, size.attention_size)
    return own / operations(6, 12 * 384**2, 384)


LEAST_COST = 0.1
EXPORT_BYTES, EXPORT_COPIES = 2**29, 4
"""Memory of an export, excluding mapped weights: memory of the libraries, and this many copies of each of the two
largest arrays, the longest text's hidden states and the 16-bit token table. Measured with BERT-base, and with 0.3 and 3
billion weights.
"""
MAX_TESTED_TOKENS = 2304
"""The longest sequence used to compare a graph with PyTorch; longer ones would take minutes. This length exceeds the
limits of dense masks and unscaled positions.
"""
WEIGHT_COPIES = 2.5
"""Number of float32 copies of the weights in memory if an export does not use mapped files."""


def describe_export(size: ModelSize, *, maps_weights: bool = True) -> str:
    """Describe the cost of exporting a model and running it on a CPU.

    Without `maps_weights`, the export copies weights to memory, for CUDA or for a published ONNX graph.
    """
    tokens = min(size.max_input_tokens, MAX_TESTED_TOKENS)
    hidden_bytes = 4 * (size.num_hidden_layers + 1) * tokens * size.hidden_size
    needed = EXPORT_BYTES + EXPORT_COPIES * (hidden_bytes + 2 * size.table)
    if not maps_weights:
        needed += int(WEIGHT_COPIES * 4 * size.parameters)
    available = available_memory()
    cost = relative_cost(size)
    times = f"{cost:,.1f} times" if cost >= LEAST_COST else f"less than {LEAST_COST} times"
    line = (
        f"estimate: {size.parameters / 1e6:,.0f} M parameters; the export takes about {needed / 2**30:,.1f} GiB of "
        f"memory, and on a CPU, a text takes {times} as long as with all-MiniLM-L6-v2"
    )
    if available is not None and needed > available:
        return f"warning: {line}. Only {available / 2**30:,.1f} GiB of memory are available, so the export may fail."
    return line


def describe_choices(task: Task | None, language: str | None) -> Iterator[str]:
    """Yield a table of the well-known models for a task and a language, the cheapest first."""
    rows = [("model", "tasks", "languages", "parameters", "hidden size", "tokens", "cost", "license")]
    sizes = {item.hub_id: estimate_size(item.hub_id, item.config, item.max_input_tokens) for item in KNOWN_MODELS}
    chosen = [model for model in KNOWN_MODELS if model.tasks and model.suits(task, language)]
    rows += [
        (
            model.hub_id, ", ".join(model.tasks), model.languages, f"{model.millions:,.0f} M", f"{model.shape[1]:,}",
            f"{model.max_input_tokens:,}", f"{relative_cost(sizes[model.hub_id]):,.1f}", model.license,
        )
        for model in sorted(chosen, key=lambda item: relative_cost(sizes[item.hub_id]))
    ]  # fmt: skip
    if not chosen:
        yield "No model of the list is made for this; it is a selection. Remove a filter."
        return
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def read_model_size(source: str) -> ModelSize:
    """Return the size of a model from the config.json of a directory or a Hugging Face model.

    Raises:
        SourceError: there is no such model, or its config.json does not describe an encoder.
    """
    known = next((model for model in KNOWN_MODELS if model.hub_id == source), None)
    if known is not None:
        return estimate_size(source, known.config, known.max_input_tokens)
    directory = Path(source)
    read = partial(_read_file, directory) if directory.is_dir() else partial(_download, parse_hub_id(source))
    config = read(CONFIG)
    if config is None:
        raise SourceError(f"{source}: has no {CONFIG}. Check the name.")
    length = (read(LENGTHS) or {}).get("max_seq_length")
    return estimate_size(source, config, length if isinstance(length, int) and length > 0 else None)


def estimate_size(name: str, config: Mapping[str, Any], max_tokens: int | None = None) -> ModelSize:
    """Return the size of the encoder that a config describes. Raises `SourceError` if a number is missing."""
    if isinstance(config.get("text_config"), dict):
        config = config["text_config"]

    def number(*keys: str, default: int | None = None) -> int:
        found = (config[key] for key in keys if isinstance(config.get(key), int) and 0 < config[key] < MAX_NUMBER)
        value = next(found, default)
        if value is None:
            raise SourceError(
                f"{name}: {keys[0]} is not a positive number in {CONFIG}. Export the model, and name the artifact."
            )
        return int(value)

    family = str(config.get("model_type", ""))
    hidden, layers, heads = number(*HIDDEN), number(*LAYERS), number(*HEADS)
    positions = number(*POSITIONS, default=max_tokens or DEFAULT_POSITIONS.get(family, 512))
    head = number("head_dim", "d_kv", default=hidden // heads)
    attention = heads * head
    keys = number("num_key_value_heads", default=heads) * head
    is_rotary = config.get("position_embedding_type") in ("rope", "rotary", "alibi")
    gated = (
        family in GATED
        or str(config.get("activation_function", "")).endswith("glu")
        or str(config.get("feed_forward_proj", "")).startswith("gated")
        or str(config.get("feed_forward_type", "")).endswith("glu")
    )
    matrices = 3 if gated else 2
    layer = 2 * hidden * (attention + keys) + matrices * hidden * number(*FEED_FORWARD, default=4 * hidden)
    embedding = number("embedding_size", default=hidden)
    rows = number("vocab_size") + (0 if is_rotary or family in WITHOUT_TABLE else positions)
    stored = number("num_hidden_groups", default=layers)  # ALBERT shares layers
    table = rows * embedding
    parameters = table + stored * layer + (embedding * hidden if embedding != hidden else 0)
    offset = 2 if family in OFFSET_POSITIONS and positions % 2**9 == 2 else 0  # unused rows before the first position
    limit = min(max_tokens or positions, positions - offset)
    return ModelSize(name, layers, hidden, attention, layer, parameters, table, limit)


def _read_file(directory: Path, name: str) -> dict[str, Any] | None:
    try:
        return _parse((directory / name).read_bytes(), f"{directory / name}")
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = f"{directory / name}: cannot be read ({error.strerror})"
        raise SourceError(f"{problem}. Check the permissions.") from None


def _download(hub_id: HubId, name: str) -> dict[str, Any] | None:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise SourceError(f"HF_ENDPOINT: not an address ({endpoint}). Use https://...")
    address = f"{endpoint}/{hub_id.model_id}/resolve/{hub_id.revision or 'main'}/{name}"
    request = urllib.request.Request(address)  # noqa: S310  # http or https
    if token := os.environ.get("HF_TOKEN", ""):
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # not sent to other hosts
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            return _parse(response.read(MAX_FILE_BYTES), name)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        denied = error.code in (401, 403)  # also returned for names that do not exist
        hint = "Check the name, or set HF_TOKEN to a token with access." if denied else "Try again later."
        raise SourceError(f"{hub_id}: {endpoint} answered {error.code}. {hint}") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        problem = f"{hub_id}: {endpoint} is unreachable ({reason})"
        raise SourceError(f"{problem}. Name a directory, or check HF_ENDPOINT.") from None


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SourceError(f"{name}: not a JSON object. Check the file.")
    return value
