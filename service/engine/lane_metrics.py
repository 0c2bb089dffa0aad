"""The metrics of one lane, with their labels bound: a lookup of labels costs as much as counting."""

from collections.abc import Callable, Sequence

from service.metrics import Metrics


class LaneMetrics:
    """The counters, histograms and gauges of one lane."""

    def __init__(self, metrics: Metrics, lane: str) -> None:
        metrics.create_lane(lane)
        self.observe_tokenize = metrics.stage_seconds.labels("tokenize", lane).observe
        self.observe_queue = metrics.stage_seconds.labels("queue", lane).observe
        self.observe_postprocess = metrics.stage_seconds.labels("postprocess", lane).observe
        self.inference_errors = metrics.inference_errors.labels(lane)
        self.batch_retries = metrics.batch_retries.labels(lane)
        self.nonfinite_outputs = metrics.nonfinite_outputs.labels(lane)
        self.cancelled_in_queue = metrics.cancelled_inputs.labels("queue")
        self.cancelled_in_batch = metrics.cancelled_inputs.labels("batch")
        self._observe_inference = metrics.stage_seconds.labels("inference", lane).observe
        self._observe_size = metrics.batch_size.labels(lane).observe
        self._observe_tokens = metrics.batch_tokens.labels(lane).observe
        self._observe_padding = metrics.batch_padding.labels(lane).observe
        self._thread_seconds = metrics.inference_thread_seconds.labels(lane)
        self._tokens = metrics.tokens
        self._queue_size = metrics.queue_size.labels(lane)
        self._queue_tokens = metrics.queue_tokens.labels(lane)
        self._queue_utilization = metrics.queue_utilization.labels(lane)

    def watch_queue(
        self, size: Callable[[], float], tokens: Callable[[], float], utilization: Callable[[], float]
    ) -> None:
        """Read the gauges of the queue from these functions when they are scraped."""
        self._queue_size.set_function(size)
        self._queue_tokens.set_function(tokens)
        self._queue_utilization.set_function(utilization)

    def observe_batch(self, sizes: Sequence[int], padded_tokens: int, seconds: float, threads: int) -> None:
        """Count one batch: sequences of these sizes, run on `threads` threads."""
        tokens = sum(sizes)
        self._observe_inference(seconds)
        self._observe_size(len(sizes))
        self._observe_tokens(tokens)
        self._observe_padding(1 - tokens / padded_tokens)
        self._thread_seconds.inc(seconds * threads)
        self._tokens.inc(tokens)
