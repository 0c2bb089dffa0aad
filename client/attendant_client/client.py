"""The synchronous client."""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack

import numpy as np

from attendant_client.connections import Address, BaseClient, closed
from attendant_client.errors import AttendantError
from attendant_client.options import (
    AttendOptions,
    ClassifyOptions,
    CompareOptions,
    EncodeOptions,
    FillMaskOptions,
    RerankOptions,
    SimilarityOptions,
    TokenClassifyOptions,
)
from attendant_client.requests import (
    OPERATIONS,
    Body,
    Inputs,
    check_embed_options,
    halves,
    is_too_large,
    make_body,
    make_comparison,
    make_model_query,
    make_ranking,
    make_similarity,
    split_body,
)
from attendant_client.responses import merge
from attendant_client.transports import GrpcTransport, HttpTransport, Response
from attendant_client.types import (
    Array,
    AttendResponse,
    ClassifyResponse,
    CompareResponse,
    EncodeResponse,
    FillMaskResponse,
    ModelInfo,
    Occurrence,
    RerankResponse,
    SimilarityResponse,
    T,
    TokenClassifyResponse,
    TokenizeResponse,
)


class Client(BaseClient):
    """A thread-safe client for one server.

    Requests with more inputs than the server accepts are split and sent sequentially. Transient errors are retried
    after the delay that the server suggests. Each method's `timeout_s` overrides the client's default.
    """

    def _open(self, address: Address, api_key: str | None) -> None:
        transport = GrpcTransport if address.is_grpc else HttpTransport
        self._transport: GrpcTransport | HttpTransport = transport(address, api_key)

    def encode(
        self, inputs: Inputs, *, timeout_s: float | None = None, **options: Unpack[EncodeOptions]
    ) -> EncodeResponse:
        """Return embeddings of the inputs; raises `AttendantError`."""
        return self._call_in_parts(EncodeResponse, make_body(inputs, **options), timeout_s)

    def embed(self, texts: Sequence[str], *, timeout_s: float | None = None, **options: Unpack[EncodeOptions]) -> Array:
        """Return the texts' pooled vectors, (N, D); raises `AttendantError`."""
        check_embed_options(options)
        options["outputs"] = ["pooled"]
        response = self.encode(texts, timeout_s=timeout_s, **options)
        return np.stack([result.pooled for result in response.results if result.pooled is not None])

    def attend(
        self, inputs: Inputs, *, timeout_s: float | None = None, **options: Unpack[AttendOptions]
    ) -> AttendResponse:
        """Return attention maps of the inputs; raises `AttendantError`."""
        return self._call_in_parts(AttendResponse, make_body(inputs, **options), timeout_s)

    def tokenize(self, inputs: Inputs, *, model: str | None = None, timeout_s: float | None = None) -> TokenizeResponse:
        """Return tokens and words of the inputs, untruncated; raises `AttendantError`."""
        return self._call_in_parts(TokenizeResponse, make_body(inputs, model=model), timeout_s)

    def compare(
        self, occurrences: Iterable[Occurrence], *, timeout_s: float | None = None, **options: Unpack[CompareOptions]
    ) -> CompareResponse:
        """Return how similar the occurrences of a word are in each layer; raises `AttendantError`."""
        return self._call_once(CompareResponse, make_comparison(occurrences, **options), timeout_s)

    def similarity(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        **options: Unpack[SimilarityOptions],
    ) -> SimilarityResponse:
        """Return the similarity of queries and documents, and its explanation; raises `AttendantError`."""
        return self._call_once(SimilarityResponse, make_similarity(queries, documents, **options), timeout_s)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        timeout_s: float | None = None,
        **options: Unpack[RerankOptions],
    ) -> RerankResponse:
        """Return the documents by their relevance to the query, best first; raises `AttendantError`."""
        return self._call_once(RerankResponse, make_ranking(query, documents, **options), timeout_s)

    def classify(
        self, inputs: Inputs, *, timeout_s: float | None = None, **options: Unpack[ClassifyOptions]
    ) -> ClassifyResponse:
        """Return the labels of the inputs, each with its score, best first; raises `AttendantError`."""
        return self._call_in_parts(ClassifyResponse, make_body(inputs, **options), timeout_s)

    def token_classify(
        self, inputs: Inputs, *, timeout_s: float | None = None, **options: Unpack[TokenClassifyOptions]
    ) -> TokenClassifyResponse:
        """Return labeled spans (named entities) of the inputs; raises `AttendantError`."""
        return self._call_in_parts(TokenClassifyResponse, make_body(inputs, **options), timeout_s)

    def fill_mask(
        self, inputs: Inputs, *, timeout_s: float | None = None, **options: Unpack[FillMaskOptions]
    ) -> FillMaskResponse:
        """Return the words that the model predicts for the mask tokens, or at `position`; raises `AttendantError`."""
        return self._call_in_parts(FillMaskResponse, make_body(inputs, **options), timeout_s)

    def model(self, name: str | None = None, *, timeout_s: float | None = None) -> ModelInfo:
        """Return a served model and its limits; None selects the default model. Raises `AttendantError`."""
        info = self._call_once(ModelInfo, make_model_query(name), timeout_s)
        if name is None:
            self._model = info
        return info

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _call_once(self, kind: type[T], body: Body, timeout_s: float | None) -> T:
        """Return the response of type `kind`, which determines the operation."""
        response: T
        response, _ = self._call(OPERATIONS[kind], body, self._deadline(timeout_s))
        return response

    def _call_in_parts(self, kind: type[T], body: Body, timeout_s: float | None) -> T:
        deadline = self._deadline(timeout_s)
        limits = (self._model or self.model(timeout_s=timeout_s)).limits
        parts = split_body(body, limits, limits.max_grpc_message_bytes if self._is_grpc else limits.max_request_bytes)
        responses = []
        pending = list(parts)[::-1]
        while pending:
            part = pending.pop()
            try:
                responses.append(self._call(OPERATIONS[kind], part.body, deadline))
            except AttendantError as error:
                if not is_too_large(error) or len(part.body["inputs"]) < 2:
                    error.count_from(part.first)
                    raise
                pending.extend(reversed(halves(part)))
        merged: T = merge(responses)
        return merged

    def _call(self, operation: str, body: Body, deadline: float | None) -> Response:
        attempt = 0
        while True:
            if self._is_closed:
                raise closed()
            attempt += 1
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                return self._transport.call(operation, body, remaining)
            except AttendantError as error:
                delay = self._retries.delay_s(error, attempt, deadline)
                if delay is None:
                    raise
            time.sleep(delay)
