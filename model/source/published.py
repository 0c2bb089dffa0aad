"""The files of a published model: JSON settings, safetensors, pickled tensors and adapters."""

import json
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from model.artifact.console import EX_DATAERR, ReportedError

PICKLED_FILE = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")


def weight_files(directory: Path) -> list[Path]:
    """Return a directory's weight files, by name: safetensors files, else pickled files."""
    safetensors = sorted(directory.glob("*.safetensors"))
    return safetensors or sorted(path for path in directory.glob("*.bin") if PICKLED_FILE.fullmatch(path.name))


def model_weight_files(directory: Path) -> list[Path]:
    """Return a model's weight files, or its ONNX graph and weights. The encoder may be in a subfolder."""
    folders = [path for path in sorted(directory.iterdir()) if path.is_dir()]
    files = weight_files(directory) or [path for folder in folders for path in weight_files(folder)]
    paths = (path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if path.is_file())
    return files + [directory / name for name in select_graph(paths)]


def half_bytes(path: Path) -> int:
    """Return the size of the 16-bit tensors in a weights file, or the size of a pickled file, whose types are unknown.

    A damaged file counts as 0; the error is reported when the file is read.
    """
    if path.suffix != ".safetensors":
        return path.stat().st_size if PICKLED_FILE.fullmatch(path.name) else 0
    try:
        with safe_open(path, "pt") as file:
            slices = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118  # the file has no iterator
            return sum(2 * math.prod(part.get_shape()) for part in slices if part.get_dtype() in ("F16", "BF16"))
    except SafetensorError:
        return 0


GRAPH = "model.onnx"
GRAPH_FOLDER = "onnx"


def find_graph(directory: Path) -> Path | None:
    """Return the ONNX graph of a directory without other weights: model.onnx or the only graph, else None.

    Raises CheckpointError if there are several graphs without a model.onnx.
    """
    if weight_files(directory):
        return None
    graphs = [path for folder in (directory / GRAPH_FOLDER, directory) for path in sorted(folder.glob("*.onnx"))]
    named = [path for path in graphs if path.name == GRAPH]
    if graphs and not named and len(graphs) > 1:
        names = ", ".join(path.name for path in graphs)
        raise CheckpointError(f"{directory}: several ONNX graphs ({names}), and none is {GRAPH}. Keep one of them.")
    return next(iter([*named, *graphs]), None)


def select_graph(paths: Iterable[str]) -> list[str]:
    """Return the ONNX graph, with its weight files, of a repository whose encoder has no other weights."""
    files = [PurePosixPath(path) for path in paths]
    # Modules after the encoder, such as "2_Dense", also contain weights.
    encoder = [file for file in files if not re.match(r"[1-9]\d*_", str(file))]
    if any(file.suffix == ".safetensors" or PICKLED_FILE.fullmatch(file.name) for file in encoder):
        return []
    graphs = [file for file in encoder if file.suffix == ".onnx"]
    named = sorted((file for file in graphs if file.name == GRAPH), key=lambda file: GRAPH_FOLDER not in file.parts)
    graph = named[0] if named else graphs[0] if len(graphs) == 1 else None
    return [] if graph is None else [str(file) for file in encoder if str(file).startswith(str(graph))]


OTHER_WEIGHTS = {
    ".gguf": "GGUF files, whose weights were quantized for llama.cpp",
    ".onnx": "several ONNX graphs, none of which is model.onnx",
    ".h5": "weights for TensorFlow",
    ".msgpack": "weights for Flax",
    ".ot": "weights for Rust",
    ".bin": "other weights",
}


def describe_missing_weights(paths: Iterable[str]) -> str:
    """Return problem and remedy for a model without safetensors or PyTorch weights, based on its files."""
    suffixes = {PurePosixPath(path).suffix for path in paths}
    kind = next((text for suffix, text in OTHER_WEIGHTS.items() if suffix in suffixes), None)
    found = "no weights" if kind is None else f"no weights that can be exported, only {kind}"
    return f"{found}. Use the original model, with safetensors or PyTorch weights."


def select_pickled(paths: Iterable[str]) -> list[str]:
    """Return the pickled weights and their indexes in repository folders without a safetensors file."""
    files = [PurePosixPath(path) for path in paths]
    safe = {file.parent for file in files if file.suffix == ".safetensors"}
    return [str(file) for file in files if file.parent not in safe and PICKLED_FILE.fullmatch(file.name)]


SAFETENSORS = "model.safetensors"
PICKLED = "pytorch_model.bin"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class CheckpointError(ReportedError):
    """Unsupported or invalid model files. The message names the file, tensor or setting."""

    status = EX_DATAERR


REDOWNLOAD = "Download the model again."


def unsupported(setting: str, value: Any, choices: Iterable[Any]) -> CheckpointError:
    """Return the error for a setting ("file: key") whose value is not one of `choices`."""
    problem = "missing" if value is None else f"unsupported ({value!r})"
    return CheckpointError(f"{setting}: {problem}. Supported: {', '.join(map(str, choices)) or 'none'}.")


CHUNK = 2**20
"""Number of values checked per step, because a copy of a whole table can take gigabytes."""


def reject_pointer(path: Path) -> None:
    """Raise CheckpointError if a file is a Git LFS pointer, as in a repository cloned without Git LFS."""
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise CheckpointError(f"{path}: a Git LFS pointer, not the file itself. Run: git lfs pull")


def token_content(token: Any) -> str | None:
    """Return the text of a special token in a settings file: a string, or an object with options; None for null."""
    content = token.get("content") if isinstance(token, dict) else token
    return None if content is None else str(content)


def require_finite(tensor: Tensor, name: str, file: str = "Weights") -> None:
    """Raise CheckpointError if a tensor contains NaN or infinity, or would after conversion to float32."""
    if not all(bool(part.float().isfinite().all()) for part in torch.split(tensor.reshape(-1), CHUNK)):
        raise CheckpointError(f"{file}: tensor {name} contains NaN or infinity. {REDOWNLOAD}")


def require_shape(tensor: Tensor, name: str, expected: Sequence[int]) -> None:
    """Raise CheckpointError unless a weight tensor has this shape."""
    if tensor.shape != tuple(expected):
        raise CheckpointError(f"Weights: tensor {name} has shape {tuple(tensor.shape)}, expected {tuple(expected)}.")


def find_tensor(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor of the weights. Raises CheckpointError if it is missing."""
    if name not in tensors:
        raise CheckpointError(f"Weights: tensor {name} is missing. {REDOWNLOAD}")
    return tensors[name]


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Return all tensors of model.safetensors or, if there is only an index, of the shards that it lists.

    Without any safetensors file, pytorch_model.bin or its shards are read, restricted to tensors.

    Raises:
        CheckpointError: a file is missing or invalid.
    """
    is_pickled = any(path.suffix == ".bin" for path in weight_files(directory))
    first = PICKLED if is_pickled else SAFETENSORS
    tensors: dict[str, Tensor] = {}
    shards = [] if (directory / first).is_file() else _shards(directory / f"{first}.index.json")  # as in transformers
    for name in shards or [first]:
        path = directory / name
        if Path(name).name != name or not path.is_file():
            if weight_files(directory):
                raise CheckpointError(f"{path}: missing. {REDOWNLOAD}")
            paths = (file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file())
            raise CheckpointError(f"{path}: missing, and there are {describe_missing_weights(paths)}")
        reject_pointer(path)
        tensors.update(read_pickled(path) if is_pickled else _read_safetensors(path))
    return tensors


def _shards(index: Path) -> list[str]:
    """Return the file names in an index; none if there is no index."""
    if not index.is_file():
        return []
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index}: weight_map is not a map of tensors to file names. {REDOWNLOAD}")
    return sorted(set(weight_map.values()))


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file ({error}). {REDOWNLOAD}") from None


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file that `torch.save` wrote.

    Unpickling can run arbitrary code. `weights_only` restricts it to tensors and plain containers.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning about the protocol of a file that is rejected anyway
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError:
        raise CheckpointError(f"{path}: contains objects other than tensors. Nothing was run.") from None
    except (MemoryError, OSError):
        raise
    except Exception as error:  # noqa: BLE001  # a damaged file can raise any exception
        problem = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: not a file of tensors ({problem}). {REDOWNLOAD}") from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path}: not a map of names to tensors. Use a model with safetensors weights.")
    return tensors


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises CheckpointError."""
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing. {REDOWNLOAD}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}). Correct it, or download the model again.") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: not a JSON object. {REDOWNLOAD}")
    return parsed


MAX_NAME = 255
MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"
ROUTER = "router_config.json"
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Configuration files of sentence-transformers' module Transformer, which reads the first one that is not empty."""
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
STANFORD = "artifact.metadata"
"""File with the options of Stanford's ColBERT, for training and inference."""
TOKENIZER_JSON = "tokenizer.json"
ADAPTER = "adapter_config.json"
MERGE = (
    'Merge the adapter with its base model: python -c "from peft import AutoPeftModelForFeatureExtraction as M; '
    "M.from_pretrained('ADAPTER').merge_and_unload().save_pretrained('MERGED')\", copy the files of the tokenizer to "
    "MERGED, and export it."
)
PACKAGES = ("sentence_transformers", "pylate")
"""Packages whose modules are known."""
TRANSFORMERS = ("Transformer", "MLMTransformer")
"""sentence-transformers modules that run an encoder."""

LOADING = frozenset({
    "attn_implementation", "cache_dir", "device_map", "dtype", "force_download", "local_files_only",
    "low_cpu_mem_usage", "max_memory", "offload_folder", "proxies", "token", "torch_dtype", "trust_remote_code",
    "use_auth_token", "use_flash_attention_2", "use_safetensors",
})  # fmt: skip
"""Arguments of transformers' `from_pretrained` that determine where and how to load."""
TOKENIZER = frozenset({
    "add_bos_token", "add_eos_token", "added_tokens_file", "additional_chat_templates", "auto_map", "backend",
    "chat_control_tokens", "chat_template", "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", "do_basic_tokenize", "errors",
    "extra_ids", "files_loaded", "from_slow", "is_local", "legacy", "local_files_only", "max_length", "merges_file",
    "model_specific_special_tokens", "name_or_path", "never_split", "pad_to_multiple_of", "pad_token",
    "pad_token_type_id", "padding", "padding_side", "processor", "processor_class", "response_schema",
    "response_template", "sp_model_kwargs", "spaces_between_special_tokens", "special_tokens_map_file",
    "split_special_tokens", "stride", "suppress_tokens", "tokenizer_file", "trim_offsets", "truncation",
    "truncation_strategy", "unk_id", "use_default_system_prompt", "use_fast", "verbose", "vocab_file", "vocab_size",
    "vocab_type", "wordpieces_prefix",
})  # fmt: skip
"""Tokenizer settings about names, decoding and padding, and for calls with arguments that sentence-transformers does
not use.
"""
HARMLESS: dict[str, frozenset[str]] = {
    MODULES: frozenset({"idx", "name", "kwargs"}),
    CONFIG: frozenset({"__version__", "keep_in_fp32_modules", "requirements"}),
    TRANSFORMER_CONFIGS[0]: frozenset({"backend", "unpad_inputs"}),
    "model_kwargs": LOADING | {"add_pooling_layer", "export", "file_name", "provider"},
    "config_kwargs": LOADING,
    "processor_kwargs": LOADING | TOKENIZER,
    "processing_kwargs": frozenset({"audio", "image", "video"}),
    "processing_kwargs.call": frozenset({
        "pad_to_multiple_of", "padding", "padding_side", "return_attention_mask", "return_length",
        "return_offsets_mapping", "return_special_tokens_mask", "return_tensors", "return_token_type_ids", "verbose",
    }),
    "Pooling": frozenset({"embedding_dimension", "word_embedding_dimension"}),
    "Dense": frozenset({"bias", "in_features", "out_features"}),
    "SpladePooling": frozenset({"chunk_size", "embedding_dimension", "word_embedding_dimension"}),
    "SparseStaticEmbedding": frozenset({"frozen"}),
    TOKENIZER_CONFIG: TOKENIZER,
    SPECIAL_TOKENS_MAP: frozenset({"pad_token"}),
}  # fmt: skip
"""Keys that do not affect results, by file or module class."""


class ConfigFile(Mapping[str, Any]):
    """The object in a JSON file, or a nested object. Records which keys are read.

    Attributes:
        name: The file relative to the model directory, and the key of a nested object, for messages.
        kind: The key of `HARMLESS`.
        raw: The values. Direct access is not recorded.
    """

    def __init__(self, name: str, values: Mapping[str, Any], kind: str) -> None:
        self.name = name
        self.kind = kind
        self.raw = values
        self._read = set(HARMLESS.get(kind, ()))
        self._nested: dict[str, ConfigFile] = {}

    def __getitem__(self, key: str) -> Any:
        self._read.add(key)
        return self.raw[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def nested(self, key: str, kind: str | None = None) -> "ConfigFile":
        """Return the object at a key, or an empty one if the key is missing or null. Raises CheckpointError."""
        if key not in self._nested:
            values = self.get(key) or {}
            if not isinstance(values, dict):
                raise CheckpointError(f"{self.name}: {key} is not an object. Correct it.")
            self._nested[key] = ConfigFile(f"{self.name}: {key}", values, kind or key)
        return self._nested[key]

    def integer(self, key: str) -> int | None:
        """Return a positive integer; None if the key is missing or null. Raises CheckpointError."""
        value = self.get(key)
        is_whole = type(value) is int or (isinstance(value, float) and value.is_integer())
        if value is not None and not (is_whole and value >= 1):
            raise CheckpointError(f"{self.name}: {key} is not a positive integer ({value!r}). Correct it.")
        return None if value is None else int(value)

    def require(self, key: str, *supported: Any) -> None:
        """Raise CheckpointError unless a key is missing, null, empty, or one of the supported values."""
        value = self.get(key)
        if value not in (None, {}, [], *supported):
            raise unsupported(f"{self.name}: {key}", value, supported)

    def unread(self) -> Iterator[str]:
        """Yield the unknown keys with a value, each as "file: key"."""
        for key, value in self.raw.items():
            if key not in self._read and value not in (None, False, [], {}):
                yield f"{self.name}: {key}"
        for nested in self._nested.values():
            yield from nested.unread()


class Module(NamedTuple):
    """A sentence-transformers module: class name and directory."""

    kind: str
    path: Path


class Published:
    """A published model: directory, modules and configuration files. Each file is read once."""

    def __init__(self, directory: Path) -> None:
        """List the modules. Raises CheckpointError for invalid files, and for models that are not encoders."""
        self.directory = directory
        self._files: dict[Path, ConfigFile] = {}
        self._warnings: list[str] = []
        self.has_modules = (directory / MODULES).is_file()
        self.modules = self._list_modules() if self.has_modules else []
        self.queries: list[Module] | None = None
        """The query modules, if separate."""
        if [module.kind for module in self.modules] in (["Router"], ["Asym"]):
            self._read_router()
        first = self.modules[0] if self.modules else None
        if first is not None and first.kind == "StaticEmbedding":
            raise CheckpointError(f"{MODULES}: StaticEmbedding is not supported: it has no encoder.")
        if first is not None and first.kind == "Router":
            raise CheckpointError(f"{MODULES}: a Router with other modules is not supported.")
        self.transformer = first.path if first is not None and first.kind in TRANSFORMERS else directory
        """The directory of config.json, weights and tokenizer."""
        if (self.transformer / ADAPTER).is_file():
            raise CheckpointError(f"{ADAPTER}: PEFT adapters are not supported. {MERGE}")

    @property
    def order(self) -> str:
        """The classes of the modules, separated by spaces."""
        return " ".join(module.kind for module in self.modules)

    @property
    def sentence_transformers(self) -> ConfigFile:
        """config_sentence_transformers.json; empty if it is missing."""
        return self.read(self.directory / CONFIG)

    @property
    def tokenizer_config(self) -> ConfigFile:
        """tokenizer_config.json; empty if it is missing."""
        return self.read(self.transformer / TOKENIZER_CONFIG)

    @property
    def transformer_config(self) -> ConfigFile:
        """The configuration of the module Transformer; empty if there is none."""
        for name in TRANSFORMER_CONFIGS:
            config = self.read(self.transformer / name, TRANSFORMER_CONFIGS[0])
            if len(config):
                return config
        return config

    def read(self, path: Path, kind: str | None = None) -> ConfigFile:
        """Return the object in a file; an empty one if the file is missing. Raises CheckpointError."""
        if path not in self._files:
            name = str(path.relative_to(self.directory)) if path.is_relative_to(self.directory) else path.name
            values = read_json(path) if path.is_file() else {}
            self._files[path] = ConfigFile(name, values, kind or path.name)
        return self._files[path]

    def find_module(self, kind: str) -> Module | None:
        """Return the first module of a class, if any."""
        return next((module for module in self.modules if module.kind == kind), None)

    def module_config(self, module: Module) -> ConfigFile:
        return self.read(module.path / "config.json", module.kind)

    def warn(self, warning: str) -> None:
        """Add a warning of the export."""
        if warning not in self._warnings:
            self._warnings.append(warning)

    def warnings(self) -> list[str]:
        """Return the warnings, including one about all unknown keys."""
        unknown = [key for file in self._files.values() if file.kind != TOKENIZER_JSON for key in file.unread()]
        listed = (
            f"ignored unknown settings, which may change the results: {'; '.join(unknown)}. Compare some vectors with "
            "the library that wrote the files."
        )
        return [*self._warnings, *([listed] if unknown else [])]

    def _list_modules(self) -> list[Module]:
        try:
            entries = json.loads((self.directory / MODULES).read_text(encoding="utf-8"))
            modules = [(str(entry["type"]).rsplit(".", 1)[-1], str(entry["path"])) for entry in entries]
        except (ValueError, RecursionError, TypeError, KeyError):
            raise CheckpointError(f"{MODULES}: not a list of modules with type and path. Correct it.") from None
        for index, entry in enumerate(entries):
            file = ConfigFile(f"{MODULES}[{index}]", entry, MODULES)
            self._files[self.directory / f"{MODULES}[{index}]"] = file
            kind, _ = str(file["type"]), file["path"]
            if kind.partition(".")[0] not in PACKAGES:
                self.warn(
                    f"{MODULES}: {kind} is code of the model, which is not run. It is replaced by "
                    f"{kind.rpartition('.')[2]} of sentence-transformers."
                )
        return list(self._locate(modules, MODULES))

    def _locate(self, modules: Iterable[tuple[str, str]], file: str) -> Iterator[Module]:
        for kind, name in modules:
            path = self.directory / name
            if len(name) > MAX_NAME:
                raise CheckpointError(f"{file}: path too long ({len(name)} characters, limit {MAX_NAME}). Correct it.")
            if not path.resolve().is_relative_to(self.directory.resolve()):
                raise CheckpointError(f"{file}: path {name!r} is outside of the model directory. Correct it.")
            yield Module(kind, path)

    def _read_router(self) -> None:
        """Select the modules for documents, and the modules for queries if different."""
        path = self.modules[0].path / ROUTER
        values = self.read(path if path.is_file() else path.with_name("config.json"), ROUTER)
        base = self.modules[0].path.relative_to(self.directory)
        routes = {}
        for role in ("document", "query"):
            try:
                names = [str(name) for name in values["structure"][role]]
                kinds = [str(values["types"][name]).rsplit(".", 1)[-1] for name in names]
            except (TypeError, KeyError):
                raise CheckpointError(f"{values.name}: no route {role} of modules. Correct it.") from None
            if not names:
                raise CheckpointError(f"{values.name}: no route {role} of modules. Correct it.")
            routes[role] = list(
                self._locate(zip(kinds, (str(base / name) for name in names), strict=True), values.name)
            )
        parameters = values.nested("parameters")
        parameters.require("route_mappings")
        default, may_be_first = parameters.get("default_route"), parameters.get("allow_empty_key", True)
        if default is None and may_be_first:
            default = next(iter(values["structure"]))
        self.modules = routes["document"]
        if routes["query"] == routes["document"]:
            return
        self.queries = routes["query"]
        if [module.kind for module in self.queries] != ["SparseStaticEmbedding"]:
            listed = " ".join(module.kind for module in self.queries)
            raise CheckpointError(
                f"{values.name}: queries and documents have different encoders (queries: {listed}; documents: "
                f"{self.order}), which one artifact cannot hold. Save each route as a model of its own, export both, "
                "and serve them with --models."
            )
        if default != "document":
            self.warn(
                f"{values.name}: texts without a role are documents here. In sentence-transformers, the default route "
                f"is {default!r}. Set role to {default!r}."
            )


STORED = re.compile(r"\.parametrizations\.weight\.original$")


def list_tasks(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the tasks that a checkpoint contains adapters for."""
    return [str(task) for task in config.get("lora_adaptations") or []]


def merge_adapters(tensors: Mapping[str, Tensor], config: Mapping[str, Any], task: str | None) -> dict[str, Tensor]:
    """Return the tensors with a task's adapters merged into the weights. None merges nothing.

    With scale alpha / r, a linear weight becomes `W + scale * B A` for A (r, in) and B (out, r), and an embedding table
    `W + scale * A B` for A (V, r) and B (r, D).

    Raises:
        CheckpointError: there is no such task.
    """
    tasks = list_tasks(config)
    if task is not None and task not in tasks:
        known = f"Use {', '.join(tasks)}." if tasks else "This model has no adapters: leave it out."
        raise CheckpointError(f"--task: unknown task ({task}). {known}")
    merged = {name: tensor for name, tensor in tensors.items() if ".parametrizations." not in name}
    for name, tensor in tensors.items():
        if not STORED.search(name):
            continue
        module = STORED.sub("", name)
        weight = tensor.float()
        if task is not None:
            a, b = (
                find_tensor(tensors, f"{module}.parametrizations.weight.0.lora_{part}")[tasks.index(task)]
                for part in "AB"
            )
            scale = float(config["lora_alpha"]) / float(config["lora_rank"])
            product = b.float() @ a.float() if b.shape[0] == weight.shape[0] else a.float() @ b.float()
            weight = weight + scale * product
        merged[f"{module}.weight"] = weight
    return merged
