"""The metrics of one model and its lanes, with their labels bound: a lookup of labels costs as much as counting."""

from collections.abc import Callable, Sequence

from service.metrics import Metrics


class ModelMetrics:
    """The counters and histograms of one model."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self.metrics, self.model = metrics, model
        metrics.create_model(model)
        self.tokens = metrics.tokens.labels(model)
        self.cancelled_in_queue = metrics.cancelled_inputs.labels("queue", model)
        self.cancelled_in_batch = metrics.cancelled_inputs.labels("batch", model)
        self._inputs = metrics.request_inputs.labels(model)
        self._request_tokens = metrics.request_tokens.labels(model)
        self._truncated_inputs = metrics.truncated_inputs.labels(model)

    def observe_request(self, inputs: int, tokens: int, truncated: int) -> None:
        """Count the inputs, tokens and truncated inputs of a request."""
        self._inputs.observe(inputs)
        self._request_tokens.observe(tokens)
        if truncated:
            self._truncated_inputs.inc(truncated)


class LaneMetrics:
    """The counters, histograms and gauges of one lane of a model."""

    def __init__(self, model_metrics: ModelMetrics, lane: str) -> None:
        metrics, labels = model_metrics.metrics, (lane, model_metrics.model)
        self.model = model_metrics.model
        metrics.create_lane(*labels)
        self.observe_tokenize = metrics.stage_seconds.labels("tokenize", *labels).observe
        self.observe_queue = metrics.stage_seconds.labels("queue", *labels).observe
        self.observe_postprocess = metrics.stage_seconds.labels("postprocess", *labels).observe
        self.inference_errors = metrics.inference_errors.labels(*labels)
        self.batch_retries = metrics.batch_retries.labels(*labels)
        self.nonfinite_outputs = metrics.nonfinite_outputs.labels(*labels)
        self.cancelled_in_queue = model_metrics.cancelled_in_queue
        self.cancelled_in_batch = model_metrics.cancelled_in_batch
        self._observe_inference = metrics.stage_seconds.labels("inference", *labels).observe
        self._observe_size = metrics.batch_size.labels(*labels).observe
        self._observe_tokens = metrics.batch_tokens.labels(*labels).observe
        self._observe_padding = metrics.batch_padding.labels(*labels).observe
        self._thread_seconds = metrics.inference_thread_seconds.labels(*labels)
        self._tokens = model_metrics.tokens
        self._queue_size = metrics.queue_size.labels(*labels)
        self._queue_tokens = metrics.queue_tokens.labels(*labels)
        self._lane_up = metrics.lane_up.labels(*labels)
        self._stalled_batches = metrics.stalled_batches.labels(*labels)
        self._queue_utilization = metrics.queue_utilization.labels(*labels)

    def watch_queue(
        self, size: Callable[[], float], tokens: Callable[[], float], utilization: Callable[[], float]
    ) -> None:
        """Read the gauges of the queue from these functions when they are scraped."""
        self._queue_size.set_function(size)
        self._queue_tokens.set_function(tokens)
        self._queue_utilization.set_function(utilization)

    def watch_health(self, healthy: Callable[[], bool], stalled: Callable[[], float]) -> None:
        """Read the gauges of the lane's health from these functions when they are scraped."""
        self._lane_up.set_function(healthy)
        self._stalled_batches.set_function(stalled)

    def observe_batch(self, sizes: Sequence[int], padded_tokens: int, seconds: float, threads: int) -> None:
        """Count one batch: sequences of these sizes, run on `threads` threads."""
        tokens = sum(sizes)
        self._observe_inference(seconds)
        self._observe_size(len(sizes))
        self._observe_tokens(tokens)
        self._observe_padding(1 - tokens / padded_tokens)
        self._thread_seconds.inc(seconds * threads)
        self._tokens.inc(tokens)
