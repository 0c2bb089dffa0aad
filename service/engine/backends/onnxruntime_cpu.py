"""One graph, opened: texts in, their vectors out. The only place that runs a session."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnxruntime
from threadpoolctl import threadpool_limits

from model.artifact import Artifact, Pooling
from model.packing import Row, RowLengths, choose, lay_out
from model.tokenizer import Tokens
from service.engine.backends.select import Provider
from service.engine.encode.pooling import pool_row
from service.engine.schema.encode import ExplainWork, Text, TextVectors
from service.errors import NonFiniteOutput


class Runtime:
    """The fast graph. `run` may be called from as many threads as the provider has workers."""

    def __init__(self, artifact: Artifact, provider: Provider) -> None:
        self.provider = provider
        self.row_lengths = RowLengths.up_to(
            artifact.manifest.max_tokens, provider.shared_row_tokens, provider.row_lengths
        )
        self.wide_tokens = min(provider.wide_tokens, artifact.manifest.max_tokens)
        self._types = artifact.manifest.types
        graph = artifact.manifest.graphs[provider.graph]
        self._session = provider.open(artifact, graph)
        self._wide_session = provider.open(artifact, graph, wide=True) if provider.wide_threads > 1 else self._session

    def warm_up(self) -> None:
        """Run what is dear the first time: every length where lengths are compiled, else the longest that texts share.

        The latter twice: the second run has its memory in one piece, and takes what would later look like growth.
        """
        shared = self.row_lengths.shared
        for session, longest in ((self._session, shared), (self._wide_session, max(shared, self.wide_tokens))):
            lengths = self.row_lengths.lengths if self.provider.compiles else (self.row_lengths.fit(longest),) * 2
            for length in lengths:
                _hidden(session, lay_out([([0] * length, None)], length))

    def choose(self, sizes: Sequence[int], free: int) -> list[int]:
        """Which waiting texts share the next row, when so many workers could start one."""
        return choose(sizes, free, shared=self.row_lengths.shared)

    def row_length(self, texts: Sequence[Text]) -> int:
        return self.row_lengths.fit(sum(len(text.tokens) for text in texts))

    def run(self, texts: Sequence[Text]) -> list[TextVectors]:
        """Pack the texts into one row and run it; one result a text.

        Raises `NonFiniteOutput`, or what onnxruntime raises.
        """
        return self._run(self._session, texts)

    def run_wide(self, texts: Sequence[Text]) -> list[TextVectors]:
        """The same on as many threads as the provider has for a row that is alone."""
        return self._run(self._wide_session, texts)

    def _run(self, session: onnxruntime.InferenceSession, texts: Sequence[Text]) -> list[TextVectors]:
        row = lay_out(
            [(text.tokens.ids, model_types(text.tokens, self._types)) for text in texts], self.row_length(texts)
        )
        hidden = _hidden(session, row)[0]
        # One sum tells: a NaN or infinity anywhere stays in it.
        if not np.isfinite(hidden[: row.tokens].sum()):
            raise NonFiniteOutput
        wanted: set[Pooling] = {text.pooling for text in texts if text.pooling is not None}
        pooled = {pooling: pool_row(hidden, row.starts, row.sizes, pooling) for pooling in wanted}
        return [
            TextVectors(
                hidden=hidden[None, start : start + size] if text.hidden else None,
                pooled=None if text.pooling is None else pooled[text.pooling][None, index],
            )
            for index, (text, start, size) in enumerate(zip(texts, row.starts, row.sizes, strict=True))
        ]


class ExplainRuntime:
    """The explain graph: what every layer gave, in float32 on onnxruntime's own provider, one text a row."""

    wide_tokens = 0

    def __init__(self, artifact: Artifact, provider: Provider) -> None:
        self.provider = provider
        self._artifact = artifact
        self._types = artifact.manifest.types

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        """Opened by the lane's one worker when it is first needed; many servers never need it.

        From then on numpy's BLAS has one thread: for matrices as small as those of maps more of them make it several
        times slower, and keep cores from the fast lane while they wait for work.
        """
        threadpool_limits(1, user_api="blas")
        return self.provider.open(self._artifact, self._artifact.manifest.graphs["explain"])

    def run(self, texts: Sequence[ExplainWork]) -> list[Any]:
        """Run each text and do its work. Raises `NonFiniteOutput`, or what onnxruntime raises."""
        return [text(self._every_layer(text.tokens)) for text in texts]

    run_wide = run

    def choose(self, sizes: Sequence[int], free: int) -> list[int]:
        """The oldest text, by itself."""
        return [0]

    def row_length(self, texts: Sequence[ExplainWork]) -> int:
        return sum(len(text.tokens) for text in texts)

    def _every_layer(self, tokens: Tokens) -> "np.ndarray[tuple[int, int, int], np.dtype[np.float32]]":
        row = lay_out([(tokens.ids, model_types(tokens, self._types))], len(tokens))
        (every,) = self._session.run(None, row.inputs)
        if not np.isfinite(every.sum()):
            raise NonFiniteOutput
        return every[:, 0]  # type: ignore[no-any-return]


def _hidden(
    session: onnxruntime.InferenceSession, row: Row
) -> "np.ndarray[tuple[int, int, int], np.dtype[np.float32]]":
    (hidden,) = session.run(None, row.inputs)
    return hidden  # type: ignore[no-any-return]


def model_types(tokens: Tokens, types: int) -> list[int] | None:
    """None when all are 0: of a single text in most families, and always in a family that has one type."""
    if types == 1:
        return None
    return tokens.types if any(tokens.types) else None
