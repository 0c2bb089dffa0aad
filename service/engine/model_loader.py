"""The loaded model: sessions, tokenizer and weights of an artifact."""

import logging
from dataclasses import dataclass, replace

from model.artifact import GOLDEN, TOKENIZER, Artifact, ArtifactError
from model.manifest import ExplainRecord
from model.mapped_tensor import MappedTensor
from model.records import TensorRecord
from model.tokenizer import Tokenizer
from service.config import ConfigError, Settings
from service.engine.backends.base import Backend, Gpu
from service.engine.backends.onnxruntime_cpu import ExplainBackend
from service.engine.backends.select import BackendOptions, Machine, explain_choice, open_backend, select_backend
from service.engine.backends.vocabulary import MaskedWords
from service.engine.encode.pooling import DenseLayers
from service.engine.explain.layers import ArtifactLayers
from service.engine.explain.operations import ExplainOperations
from service.engine.golden_check import min_golden_cosine
from service.engine.schema.tasks import EncodeTask, TextVectors
from service.engine.tokenizer import ServingTokenizer
from service.model_options import ModelOption

log = logging.getLogger("attendant.model")


@dataclass(frozen=True)
class LoadedModel:
    """An opened artifact with its warm backend."""

    artifact: Artifact
    tokenizer: ServingTokenizer
    backend: Backend[EncodeTask, TextVectors]
    explain: ExplainBackend | None
    dense_layers: DenseLayers
    static: MappedTensor | None
    """The embedding table, (V, E)."""
    mask_tokenizer: ServingTokenizer | None = None
    """The tokenizer of texts that spell the mask token; None for a model without one."""

    @classmethod
    def load(cls, settings: Settings, option: ModelOption | None = None) -> "LoadedModel":
        """Verify and open an artifact and warm up the backend. Takes several seconds. None selects the default model.

        Raises `ArtifactError` or `ConfigError`.
        """
        option = option or settings.served_models[0]
        artifact = Artifact.open(option.directory, option.digest)
        options = BackendOptions(
            settings.provider,
            settings.precision,
            settings.threads,
            settings.max_batch_tokens,
            Gpu(settings.gpu_device, settings.gpu_memory_limit_bytes),
        )
        definition, masked = artifact.read(TOKENIZER), artifact.manifest.masked_lm
        tokenizer, mask_token_id = ServingTokenizer(definition), None if masked is None else masked.mask_token_id
        opened = open_accurate_backend(artifact, tokenizer, options, Machine.detect())
        artifact.release_pages()
        choice, static = opened.backend.choice, artifact.manifest.static
        log.info(
            "backend selected model=%s provider=%s precision=%s streams=%d threads_per_stream=%d min_cosine=%s "
            "reason=%s",
            option.name or artifact.manifest.name, choice.provider, choice.precision, choice.streams,
            choice.threads_per_stream, opened.min_cosine, choice.reason,
        )  # fmt: skip
        return cls(
            artifact,
            tokenizer,
            opened.backend,
            _explain_backend(artifact, settings.threads),
            DenseLayers(artifact),
            artifact.map(static) if isinstance(static, TensorRecord) else None,
            None if mask_token_id is None else ServingTokenizer(definition, mask_token_id),
        )


def _explain_backend(artifact: Artifact, threads: int) -> ExplainBackend | None:
    explain = artifact.manifest.explain
    if not isinstance(explain, ExplainRecord):
        return None
    choice = explain_choice(explain.graph, threads)
    layers = ArtifactLayers(artifact, choice.threads_per_stream)
    head = artifact.manifest.masked_lm
    predict = None if head is None else MaskedWords(artifact, head).predict
    return ExplainBackend(artifact, choice, ExplainOperations(layers, predict))


@dataclass(frozen=True)
class OpenedBackend:
    """A warm backend, and its smallest cosine to the golden vectors: a number, or why there is none."""

    backend: Backend[EncodeTask, TextVectors]
    min_cosine: str


def open_accurate_backend(
    artifact: Artifact, tokenizer: Tokenizer, options: BackendOptions, machine: Machine, reason: str = ""
) -> OpenedBackend:
    """Open the selected backend and compare it with the golden vectors; if "auto" is too inaccurate, use float32.

    `reason` replaces the reason of the selection.

    Raises `ConfigError` if a requested precision is too inaccurate, and `ArtifactError` if float32 is.
    """
    choice = select_backend(options, artifact.manifest.graphs, machine)
    backend = open_backend(artifact, replace(choice, reason=reason or choice.reason))
    backend.warm_up()
    golden = artifact.read_golden_vectors()
    if golden is None:
        log.warning("golden vectors missing, accuracy not checked model=%s", artifact.manifest.name)
        return OpenedBackend(backend, "unknown")
    cosine = min_golden_cosine(golden, artifact.manifest, tokenizer, backend)
    limit = golden.min_cosine[choice.precision]
    if cosine >= limit:
        return OpenedBackend(backend, f"{cosine:.6f}")
    measured = f"(min cosine {cosine:.6f}, limit {limit})"
    if choice.precision == "float32":
        raise ArtifactError(f"{artifact.root / GOLDEN}: vectors differ from the export {measured}. Export again.")
    if options.precision != "auto" or options.provider == "cuda":
        raise ConfigError(
            f'ATTENDANT_PRECISION: "{choice.precision}" is too inaccurate for this model {measured}. Use "float32".'
        )
    reason = f"{choice.precision} is too inaccurate for this model {measured}"
    return open_accurate_backend(artifact, tokenizer, replace(options, precision="float32"), machine, reason)
