"""Number of replicas for a load, computed from measurements with exact fractions.

CPU figures come from bench/README.md: 2026-11-22, OpenVINO, two shared cores of an Intel Xeon with AMX and
AVX512-VNNI, the default model, sentences with a mean of 23 tokens, and the load generator running on the same cores.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from model.artifact.manifest import Manifest
from service.engine.loading_memory import WEIGHT_COPIES, weight_bytes

Precision = Literal["bfloat16", "float32", "int8"]
Hardware = Literal["cpu", "gpu"]

MEASURED_CPU = "Intel Xeon with AMX, 2 shared cores, 2026-11-22"
TOKENS_PER_SECOND_PER_CORE: dict[Precision, int] = {"bfloat16": 13_600, "float32": 4_200, "int8": 6_400}
"""W32 of the bench: 1,185 texts/s of 23 tokens through the server on two cores in bfloat16.

float32 and int8 reached 0.31 and 0.47 of the bfloat16 throughput under the same load in the same minute.
"""
EVENT_LOOP_S_PER_REQUEST = Fraction(50, 100_000)
EVENT_LOOP_S_PER_TEXT = Fraction(8, 100_000)
"""CPU time of the event loop over REST at capacity: 0.58 ms per single-text request in the open-loop bench.

At lower load it is 0.38 ms, and 2.86 ms for a request with 32 texts.
"""
SHAPES = (2, 4, 8, 16)
"""Numbers of cores per replica to choose from. A single core has not been measured with the load generator on other
cores.
"""
ROW_TOKENS = 128
"""Texts share rows of this length, and attention is computed over whole rows."""
REST_MIB = 419
"""Resident memory of an idle server with the default model."""
LOAD_MIB = 353
"""Memory growth under load, up to the high-water mark of 772 MiB in `make soak`, an hour of mixed requests."""
MANIFEST_LIMIT_MIB = 2048
"""Container memory limit in deploy/overlays/cpu."""


@dataclass(frozen=True)
class ModelShape:
    """The properties of an encoder that determine its cost. `weights_mib` is the size of its weights in float32."""

    name: str
    num_hidden_layers: int
    hidden_size: int
    max_input_tokens: int
    weights_mib: Fraction

    @classmethod
    def of(cls, manifest: Manifest) -> "ModelShape":
        return cls(
            manifest.name,
            manifest.architecture.num_hidden_layers,
            manifest.architecture.hidden_size,
            manifest.max_input_tokens,
            Fraction(weight_bytes(manifest), 2**20),
        )

    def flops_per_token(self, tokens: Fraction) -> Fraction:
        """Return the floating-point operations per token of a text of `tokens`: L * (24 * H^2 + 4 * T * H).

        Per layer, the projections of query, key, value and output multiply by 4 * H^2 weights, and the feed-forward
        layers by 8 * H^2 (an intermediate size of 4 * H is assumed); query-key and probs-value products take T * H
        multiplications each. A multiplication plus an addition counts as two operations. Embeddings, softmax and
        normalization are ignored. This is only an estimate: a BERT-base-sized model needs 7.8 times as many operations
        as the default model but took 5 times as long, because large products are faster. Source: Kaplan et al., Scaling
        Laws for Neural Language Models, 2020, table 1; its attention term is half of this one, because a causal mask is
        half empty.
        """
        length = max(tokens, Fraction(ROW_TOKENS))
        return self.num_hidden_layers * (24 * self.hidden_size**2 + 4 * length * self.hidden_size)


DEFAULT_MODEL = ModelShape("all-MiniLM-L6-v2", 6, 384, 256, Fraction(90_261_504, 2**20))
"""The measured model, with 22.7 million parameters."""


@dataclass(frozen=True)
class Load:
    """The load to serve. `utilization` is the share of the capacity to use; the rest is headroom for peaks."""

    texts_per_second: Fraction
    mean_tokens: Fraction
    inputs_per_request: int
    utilization: Fraction

    @property
    def requests_per_second(self) -> Fraction:
        return self.texts_per_second / self.inputs_per_request

    @property
    def tokens_per_second(self) -> Fraction:
        return self.texts_per_second * self.mean_tokens


@dataclass(frozen=True)
class Capacity:
    """The replicas for a load, with every step of the calculation.

    `tokens_per_second` is the inference throughput per core, or per GPU. Cores run inference and the event loop; on a
    GPU, `cores_per_replica` is 1, the GPU. `spare_replicas` are added, so that the load is still served while that many
    replicas are lost or being replaced.
    """

    load: Load
    hardware: Hardware
    tokens_per_second: Fraction
    cores_per_replica: int
    spare_replicas: int = 0

    @property
    def inference_units(self) -> Fraction:
        """Cores or GPUs kept busy by inference."""
        return self.load.tokens_per_second / self.tokens_per_second

    @property
    def event_loop_s_per_request(self) -> Fraction:
        return EVENT_LOOP_S_PER_REQUEST + EVENT_LOOP_S_PER_TEXT * self.load.inputs_per_request

    @property
    def event_loop_cores(self) -> Fraction:
        """Cores kept busy by event loops. A process has one event loop, which uses at most one core."""
        return self.load.requests_per_second * self.event_loop_s_per_request

    @property
    def busy_units(self) -> Fraction:
        """Cores kept busy by inference and event loops, or GPUs kept busy by inference."""
        return self.inference_units + (self.event_loop_cores if self.hardware == "cpu" else 0)

    @property
    def compute_replicas(self) -> int:
        return math.ceil(self.busy_units / (self.load.utilization * self.cores_per_replica))

    @property
    def event_loop_replicas(self) -> int:
        return math.ceil(self.event_loop_cores / self.load.utilization)

    @property
    def replicas(self) -> int:
        return max(self.compute_replicas, self.event_loop_replicas)

    @property
    def total_replicas(self) -> int:
        """Replicas, including spare ones."""
        return self.replicas + self.spare_replicas

    @property
    def total_units(self) -> int:
        """Cores or GPUs of all replicas."""
        return self.total_replicas * self.cores_per_replica

    @property
    def limit(self) -> Literal["compute", "event loop"]:
        """The resource that determines the number of replicas."""
        return "event loop" if self.event_loop_replicas > self.compute_replicas else "compute"


def cheapest(load: Load, tokens_per_second: Fraction, spare_replicas: int) -> Capacity:
    """Return the CPU configuration with the fewest cores or, if tied, the fewest replicas.

    Small replicas waste less on the last and the spare replica, and have more event loops per core.
    """
    shapes = [Capacity(load, "cpu", tokens_per_second, cores, spare_replicas) for cores in SHAPES]
    return min(shapes, key=lambda shape: (shape.total_units, shape.total_replicas))


def memory_mib(model: ModelShape) -> Fraction:
    """Return a replica's resident memory under load, in MiB.

    This is the measured high-water mark plus `WEIGHT_COPIES` times the difference in weight size.
    """
    return REST_MIB + LOAD_MIB + WEIGHT_COPIES * (model.weights_mib - DEFAULT_MODEL.weights_mib)
