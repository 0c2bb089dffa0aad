"""The loaded model: an artifact's sessions, tokenizer and weights."""

import logging
import os
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

from model.artifact.files import GOLDEN, TOKENIZER, Artifact, ArtifactError, MappedTensor
from model.artifact.manifest import ExplainRecord, GoldenOutput, TensorRecord
from model.artifact.names import PADDED
from model.artifact.tokenizer import Tokenizer
from service.config import ConfigError, Settings
from service.engine.backends.base import Backend, BackendChoice, Gpu, SeveralGraphs
from service.engine.backends.cpu import available_cpus
from service.engine.backends.heads import MaskedWords
from service.engine.backends.onnxruntime_cpu import ExplainBackend
from service.engine.backends.select import BackendOptions, Machine, explain_choice, open_backend, select_backend
from service.engine.golden_check import EXPECTED_COSINE, FLOOR_COSINE, golden_cosines, has_trained_embeddings
from service.engine.layers import ArtifactLayers
from service.engine.tasks import EncodeTask, ModelParts, TextVectors
from service.engine.vectors import DenseLayers
from service.engine.weight_check import check_tokens, check_weights
from service.model_options import ModelOption
from service.process import lower_thread_priority

MAX_PROBLEM = 300

# The tokenizers library reads this variable on every call. Its pool creates one thread per CPU in each worker, and
# makes short batches 10% slower: even a single text is handed to a pool thread.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

log = logging.getLogger("attendant.model")


@dataclass(frozen=True)
class LoadedModel:
    """An opened artifact with its warm backend."""

    artifact: Artifact
    tokenizer: Tokenizer
    backend: Backend[EncodeTask, TextVectors]
    explain: ExplainBackend | None
    dense_layers: DenseLayers
    static: MappedTensor | None
    """The embedding table, (V, E)."""
    mask_tokenizer: Tokenizer | None = None
    """The tokenizer of texts that spell the mask token; None for a model without one."""

    @classmethod
    def load(cls, settings: Settings, option: ModelOption | None = None) -> "LoadedModel":
        """Verify and open an artifact and warm up the backend. Takes several seconds. None selects the default model.

        Raises `ArtifactError` or `ConfigError`.
        """
        option = option or settings.served_models[0]
        artifact = Artifact.open(option.directory, option.digest)
        try:
            return cls._load(settings, option, artifact)
        except (ArtifactError, ConfigError):
            raise
        except Exception as error:  # for invalid files, tokenizers and runtimes raise exceptions of any type
            log.debug("model load failed directory=%s", artifact.root, exc_info=True)
            problem = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_PROBLEM]
            raise ArtifactError(
                f"{artifact.root}: cannot be loaded ({problem}). Export again. ATTENDANT_LOG_LEVEL=debug logs details."
            ) from None

    @classmethod
    def _load(cls, settings: Settings, option: ModelOption, artifact: Artifact) -> "LoadedModel":
        options = BackendOptions(
            settings.provider,
            settings.precision,
            settings.threads,
            settings.max_batch_tokens,
            Gpu(settings.gpu_device, settings.gpu_memory_limit_bytes),
        )
        definition, masked = artifact.read(TOKENIZER), artifact.manifest.masked_lm
        in_text = artifact.manifest.special_tokens_in_text
        if settings.special_tokens_in_text is not None:
            in_text = settings.special_tokens_in_text
        prompts = artifact.manifest.prompts.values()
        tokenizer = Tokenizer(definition, special_tokens_in_text=in_text, prompts=prompts)
        tokenizer.helpers = helper_threads(settings.threads or available_cpus())
        mask_token_id = None if masked is None else masked.mask_token_id
        check_tokens(artifact, tokenizer)
        check_weights(artifact)
        dense_layers = DenseLayers(artifact)
        own = tokenizer
        if in_text != artifact.manifest.special_tokens_in_text:  # golden vectors use the artifact's setting
            own = Tokenizer(definition, special_tokens_in_text=not in_text)
        opener = BackendOpener(artifact, own, dense_layers, settings.min_cosine)
        opened = opener.open(options, Machine.detect())
        artifact.release_pages()
        choice, static = opened.backend.choice, artifact.manifest.static
        log.info(
            "backend selected model=%s provider=%s precision=%s streams=%d threads_per_stream=%d min_cosine=%s "
            "reason=%s",
            option.name or artifact.manifest.name, choice.provider, choice.precision, choice.streams,
            choice.threads_per_stream, opened.describe(), choice.reason,
        )  # fmt: skip
        return cls(
            artifact,
            tokenizer,
            opened.backend,
            _explain_backend(artifact, settings.threads),
            dense_layers,
            artifact.map(static) if isinstance(static, TensorRecord) else None,
            None if mask_token_id is None else Tokenizer(definition, mask_token_id, special_tokens_in_text=in_text),
        )


@cache
def helper_threads(threads: int) -> Executor | None:
    """Return the threads that help with long batches of tokenization, all but one of `threads`; None for one.

    The whole process shares them. They have the priority of inference threads.
    """
    if threads == 1:
        return None
    return ThreadPoolExecutor(threads - 1, thread_name_prefix="attendant-tokenize", initializer=lower_thread_priority)


def _explain_backend(artifact: Artifact, threads: int) -> ExplainBackend | None:
    explain = artifact.manifest.explain
    if not isinstance(explain, ExplainRecord):
        return None
    choice = explain_choice(explain.graph, threads)
    layers = ArtifactLayers(artifact, choice.threads_per_stream)
    head = artifact.manifest.masked_lm
    predict = None if head is None else MaskedWords(artifact, head).predict
    return ExplainBackend(artifact, choice, ModelParts(layers, predict))


@dataclass(frozen=True)
class OpenedBackend:
    """A warm backend, and each head's cosine to the golden vectors; empty if the artifact has none."""

    backend: Backend[EncodeTask, TextVectors]
    cosines: dict[GoldenOutput, float]
    trained_embeddings: bool = True

    @property
    def least_accurate(self) -> tuple[GoldenOutput, float] | None:
        """The head with the smallest cosine, and its cosine. Untrained embeddings do not count."""
        heads = dict(self.cosines)
        if not self.trained_embeddings:
            heads.pop("embedding", None)
        return min(heads.items(), key=lambda item: item[1], default=None)

    def describe(self) -> str:
        """Describe the smallest cosine, and the cosine of each head if there are several."""
        if self.least_accurate is None:
            return "unknown"
        heads = ",".join(f"{head}:{cosine:.6f}" for head, cosine in self.cosines.items())
        return f"{self.least_accurate[1]:.6f}" + (f" cosines={heads}" if len(self.cosines) > 1 else "")


@dataclass(frozen=True)
class BackendOpener:
    """Opens an artifact's backend and rejects it if it is too inaccurate.

    `min_cosine` replaces every precision's minimum cosine; 0 keeps the defaults.
    """

    artifact: Artifact
    tokenizer: Tokenizer
    dense_layers: DenseLayers
    min_cosine: float

    def open(self, options: BackendOptions, machine: Machine, reason: str = "") -> OpenedBackend:
        """Open the selected backend and compare it with the golden vectors; fall back from "auto" to float32.

        `reason` replaces the reason for the selection.

        Raises `ConfigError` if a requested precision is too inaccurate, and `ArtifactError` if float32 is.
        """
        artifact = self.artifact
        choice = select_backend(options, artifact.manifest.graph_precisions, machine)
        backend = open_backend(artifact, replace(choice, reason=reason or choice.reason))
        backend.warm_up()
        golden = artifact.read_golden_vectors()
        if golden is None:
            log.warning("golden vectors missing, accuracy not checked model=%s", artifact.manifest.name)
            return OpenedBackend(backend, {})
        # All golden texts may be short enough for one graph, and longer texts run in the other.
        checks = [
            golden_cosines(golden, artifact.manifest, self.tokenizer, backend, self.dense_layers)
            for _ in (backend.each_graph() if isinstance(backend, SeveralGraphs) else [None])
        ]
        cosines = {head: min(check[head] for check in checks) for head in checks[0]}
        opened = OpenedBackend(backend, cosines, has_trained_embeddings(artifact.manifest))
        assert opened.least_accurate is not None
        head, cosine = opened.least_accurate
        floor = self.min_cosine or FLOOR_COSINE[choice.precision]
        if cosine >= floor:
            if cosine < EXPECTED_COSINE[choice.precision]:
                self._warn(choice, head, cosine)
            return opened
        measured = f"({head}: min cosine {cosine:.6f}, limit {floor})"
        if choice.precision == "float32" or choice.graph == PADDED:
            raise ArtifactError(
                f"{artifact.root / GOLDEN}: vectors differ from the export {measured}. Export again, or set a smaller "
                "ATTENDANT_MIN_COSINE."
            )
        if options.precision != "auto" or options.provider == "cuda":
            raise ConfigError(
                f'ATTENDANT_PRECISION: "{choice.precision}" is too inaccurate for this model {measured}. '
                'Use "float32", or set a smaller ATTENDANT_MIN_COSINE.'
            )
        reason = f"{choice.precision} is too inaccurate for this model {measured}"
        return self.open(replace(options, precision="float32"), machine, reason)

    def _warn(self, choice: BackendChoice, head: GoldenOutput, cosine: float) -> None:
        remedy = "Export again on this machine"
        if choice.precision != "float32" and choice.graph != PADDED:
            remedy = (
                "ATTENDANT_PRECISION=float32 is more accurate, and takes 2 to 4 times as long on CPUs with AMX. "
                "ATTENDANT_MIN_COSINE sets the limit below which a precision is not used"
            )
        log.warning(
            "accuracy below the expected cosine model=%s precision=%s head=%s cosine=%.6f expected=%g. %s.",
            self.artifact.manifest.name, choice.precision, head, cosine, EXPECTED_COSINE[choice.precision], remedy,
        )  # fmt: skip
