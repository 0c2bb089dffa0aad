"""The inference engine of one model: its lanes, and the operations on them."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from service.config import Settings
from service.engine.admission import Admission
from service.engine.lane import Lane, Reservation
from service.engine.model_info import describe_model, limits_of
from service.engine.model_loader import LoadedModel
from service.engine.observer import ModelObserver
from service.engine.operations.attend import attend
from service.engine.operations.compare import compare
from service.engine.operations.encode import encode
from service.engine.operations.served_model import ExplainLane, FastLane, ServedModel
from service.engine.operations.similarity import similarity
from service.engine.operations.tokenize import decode, tokenize
from service.engine.schema.decode import DecodeRequest
from service.engine.schema.encode import EncodeRequest, EncodeResponse, TokenizeRequest, TokenizeResponse
from service.engine.schema.explain import AttendRequest, AttendResponse, CompareRequest, CompareResponse
from service.engine.schema.similarity import SimilarityRequest, SimilarityResponse
from service.metrics import EXPLAIN_LANE, FAST_LANE, Metrics
from service.model_options import ModelOption
from service.request_log import current_record


class Timed(Protocol):
    """A request; `deadline` is a time.monotonic() reading, or None for the maximum timeout."""

    @property
    def deadline(self) -> float | None: ...


RequestT = TypeVar("RequestT", bound=Timed)
ResponseT = TypeVar("ResponseT")


class Engine:
    """The inference engine of one model. Construct it on the event loop that uses it.

    `fast_lanes` collects the fast lanes of all engines, to which the explain lane yields; None if there is one engine.
    `engines` is the number of engines that share the machine.

    Each operation raises a `ServiceError` if it fails. Cancellation drops its queued tasks.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: Settings,
        metrics: Metrics,
        option: ModelOption | None = None,
        fast_lanes: list[FastLane] | None = None,
        engines: int = 1,
    ) -> None:
        option = option or settings.served_models[0]
        manifest = model.artifact.manifest
        self.name = option.name or manifest.name
        limits = limits_of(settings, manifest.max_input_tokens)
        self.info = describe_model(model, limits, self.name, option.aliases)
        self.max_batch_tokens = model.backend.max_batch_tokens
        observer = ModelObserver(metrics, self.name)
        fast = Admission(
            model.backend.seconds,
            model.backend.choice.streams / engines,
            settings.max_queue_ms,
            settings.max_queue_tokens,
            self.max_batch_tokens,
        )
        self.fast_lane: FastLane = Lane(FAST_LANE, model.backend, fast, observer)
        fast_lanes = [] if fast_lanes is None else fast_lanes
        fast_lanes.append(self.fast_lane)
        explain = Admission(
            model.explain.seconds,
            1 / engines,
            settings.max_explain_queue_ms,
            settings.max_explain_queue_tokens,
            model.explain.max_batch_tokens,
        )
        self.explain_lane: ExplainLane = Lane(
            EXPLAIN_LANE, model.explain, explain, observer, lambda: any(lane.busy for lane in fast_lanes)
        )
        self._model = ServedModel(model, self.name, limits, self.fast_lane, self.explain_lane)
        self._max_timeout_s = limits.max_timeout_ms / 1000

    @property
    def healthy(self) -> bool:
        """True while embeddings can be computed and no batch has stalled.

        A failed explain lane rejects its own requests only.
        """
        return self.fast_lane.healthy and not (self.fast_lane.stalled or self.explain_lane.stalled)

    def watch(self, seconds: float) -> None:
        """Count `seconds` of run time for the running batches."""
        self.fast_lane.watch(seconds)
        self.explain_lane.watch(seconds)

    @property
    def near_capacity(self) -> bool:
        """True if the fast lane may reject the next request. `reserve` then tells before the request is parsed."""
        return self.fast_lane.admission.near_capacity

    def reserve(self, characters: int) -> Reservation:
        """Reserve fast-lane capacity for a request of this many characters; raises as `Lane.reserve` does."""
        cost = self.fast_lane.admission.cost_of_text(characters)
        return self.fast_lane.reserve(cost, time.monotonic() + self._max_timeout_s)

    async def drain(self) -> None:
        """Wait until every admitted request has finished."""
        await self._model.drain()

    async def close(self) -> None:
        """Fail queued requests and stop the workers."""
        await self._model.close()

    def encode(self, request: EncodeRequest) -> Awaitable[EncodeResponse]:
        """Return embeddings of the inputs."""
        return self._perform(encode, request)

    def attend(self, request: AttendRequest) -> Awaitable[AttendResponse]:
        """Return attention maps of the inputs."""
        return self._perform(attend, request)

    def compare(self, request: CompareRequest) -> Awaitable[CompareResponse]:
        """Return similarities of a word's occurrences."""
        return self._perform(compare, request)

    def similarity(self, request: SimilarityRequest) -> Awaitable[SimilarityResponse]:
        """Return similarities of queries and documents."""
        return self._perform(similarity, request)

    def tokenize(self, request: TokenizeRequest) -> Awaitable[TokenizeResponse]:
        """Return tokens and words of the inputs, untruncated."""
        return self._perform(tokenize, request)

    def decode(self, request: DecodeRequest) -> Awaitable[list[str]]:
        """Return the texts of token ids."""
        return self._perform(decode, request)

    def content_ids(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the ids without the special tokens of the model, if they have all of them at both ends."""
        return self._model.tokenizer.content_ids(token_ids)

    def _perform(
        self, operation: Callable[[ServedModel, RequestT, float], Awaitable[ResponseT]], request: RequestT
    ) -> Awaitable[ResponseT]:
        """Start an operation, which raises `DeadlineExceeded` when the deadline of the request passes."""
        now, requested = time.monotonic(), request.deadline
        deadline = now + self._max_timeout_s
        if requested is not None:
            deadline = min(requested, deadline)
            if (record := current_record()) is not None:
                record.timeout_s = requested - now
        return operation(self._model, request, deadline)
