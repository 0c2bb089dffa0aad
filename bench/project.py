"""Everything that the bench imports from the project, apart from starting servers.

All other measurements use the public API, so engine changes only affect this module.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from attendant_client.pb import encoder_pb2 as pb

from bench.load import ROOT
from model.export.sample_texts import find_sentences
from model.source.hub import locate
from service.config import Settings

BASE64 = {"encoding_format": "base64"}
INT8_VARIANT = ("--variant", "int8")
MAX_QUEUE_MS = 2000
EXPORT_TIMEOUT_S = 300


@dataclass(frozen=True)
class Model:
    """The served artifact."""

    directory: Path

    @classmethod
    def default(cls) -> "Model":
        return cls(ROOT / Settings.model_fields["model_dir"].default)

    @property
    def graph(self) -> Path:
        """ONNX file of the fast graph, with its weights in the same directory."""
        return self.directory / str(self._manifest["graphs"]["fast"]["file"])

    @property
    def vocab_size(self) -> int:
        return self.tokenizer().vocab_size

    @property
    def _manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.directory / "manifest.json").read_bytes())
        return manifest

    def tokenizer(self) -> "Tokenizer":
        return Tokenizer(self.directory / "tokenizer.json")


class Tokenizer:
    """The model's tokenizer, independent of the server's code."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.ids(texts)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return each token's character range, without special tokens."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [(int(start), int(end)) for start, end in encoding.offsets]


def read_sentences() -> Iterable[str]:
    """Yield real English sentences from the documentation of installed packages."""
    return find_sentences()


def checkpoint_directory() -> Path:
    """Return the default model's checkpoint directory, for peers and references. Raises `SourceError`."""
    return Path(locate("default").directory)


def max_queue_ms() -> int:
    """Return the server's default limit for the queue time, in milliseconds."""
    field = Settings.model_fields.get("max_queue_ms")
    return int(field.default) if field else MAX_QUEUE_MS


def served_precision(rest: str) -> str:
    import httpx  # not installed on GPU bench machines

    model: dict[str, Any] = httpx.get(f"{rest}/v1/model", timeout=10).raise_for_status().json()
    return str(model["precision"])


def served_name(rest: str) -> str:
    import httpx  # not installed on GPU bench machines

    return str(httpx.get(f"{rest}/v1/model", timeout=10).raise_for_status().json()["name"])


def encode_body(texts: Sequence[str], encoding: str = "float", outputs: Sequence[str] = ()) -> dict[str, object]:
    body: dict[str, object] = {"inputs": list(texts), **(BASE64 if encoding == "base64" else {})}
    return body | ({"outputs": list(outputs)} if outputs else {})


def attend_body(text: str, **fields: object) -> dict[str, object]:
    return {"inputs": text, **fields}


def encode_message(body: dict[str, Any]) -> bytes:
    """Return the gRPC message for a /v1/encode body."""
    outputs = [f"OUTPUT_{name.upper()}" for name in body.get("outputs", ())]
    message = pb.EncodeRequest(inputs=[pb.Input(text=text) for text in body["inputs"]], outputs=outputs)
    return message.SerializeToString()


def export_int8(out: Path) -> float:
    """Export the default model with its int8 graph; return the duration in seconds."""
    command = [sys.executable, "-m", "model", "export", "default", "-o", str(out), *INT8_VARIANT]
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=os.environ, check=True, capture_output=True, timeout=EXPORT_TIMEOUT_S)
    return time.perf_counter() - started
