"""A lane: a queue with its own graph, limits and metrics, so that one kind of work never slows the other."""

from collections.abc import Callable, Sequence

from service.engine.batcher import Batcher, Plan
from service.engine.requests import Text, TextVectors
from service.engine.runtime import ExplainRuntime, Runtime
from service.metrics import Metrics

ChooseRow = Callable[[Sequence[int], int], list[int]]


class Lane:
    """Started on the loop that its callers run on."""

    def __init__(
        self,
        name: str,
        runtime: Runtime | ExplainRuntime,
        choose_row: ChooseRow,
        max_queue_tokens: int,
        metrics: Metrics,
    ) -> None:
        self.name = name
        self.precision = runtime.provider.precision
        self.batcher: Batcher[Text, TextVectors] = Batcher(
            Plan(
                lane=name,
                run=runtime.run,
                choose=choose_row,
                row_length=runtime.row_length,
                workers=runtime.provider.workers,
                max_queue_tokens=max_queue_tokens,
            ),
            metrics,
        )
        self.observe_tokenize = metrics.stage_seconds.labels("tokenize", name).observe
        self.observe_postprocess = metrics.stage_seconds.labels("postprocess", name).observe


def one_alone(sizes: Sequence[int], free: int) -> list[int]:
    """The oldest text, by itself."""
    return [0]
