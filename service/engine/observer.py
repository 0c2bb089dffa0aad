"""What operators see of a model, its lanes and their requests: metrics, and the record of the current request.

The labels of metrics are bound here, because a lookup of labels costs as much as counting.
"""

import time
from collections.abc import Callable, Sequence

from model.artifact.tokenizer import TokenizedInput
from service.engine.schema.encode import Timing
from service.metrics import Metrics
from service.request_log import current_record


class ModelObserver:
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


class LaneObserver:
    """The counters, histograms and gauges of one lane of a model."""

    def __init__(self, model: ModelObserver, lane: str) -> None:
        metrics, labels = model.metrics, (lane, model.model)
        self.lane, self.model = lane, model.model
        self.observe_request = model.observe_request
        metrics.create_lane(*labels)
        self.observe_tokenize = metrics.stage_seconds.labels("tokenize", *labels).observe
        self.observe_queue = metrics.stage_seconds.labels("queue", *labels).observe
        self.observe_postprocess = metrics.stage_seconds.labels("postprocess", *labels).observe
        self.inference_errors = metrics.inference_errors.labels(*labels)
        self.batch_retries = metrics.batch_retries.labels(*labels)
        self.nonfinite_outputs = metrics.nonfinite_outputs.labels(*labels)
        self.cancelled_in_queue = model.cancelled_in_queue
        self.cancelled_in_batch = model.cancelled_in_batch
        self._observe_inference = metrics.stage_seconds.labels("inference", *labels).observe
        self._observe_size = metrics.batch_size.labels(*labels).observe
        self._observe_tokens = metrics.batch_tokens.labels(*labels).observe
        self._observe_padding = metrics.batch_padding.labels(*labels).observe
        self._thread_seconds = metrics.inference_thread_seconds.labels(*labels)
        self._tokens = model.tokens
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


class Observation:
    """The stages of one request in a lane, from its tokenization on."""

    def __init__(self, lane: LaneObserver) -> None:
        self._lane = lane
        self._record = current_record()
        if self._record is not None:
            self._record.lane = lane.lane
        self._started = self._tokenized = self._ran = time.perf_counter()
        self._queue_s = 0.0

    def tokenized(self, inputs: Sequence[TokenizedInput]) -> tuple[int, int]:
        """Count the inputs; return the number of tokens, and of truncated inputs."""
        self._tokenized = time.perf_counter()
        tokens = truncated = 0
        for item in inputs:
            tokens += len(item)
            truncated += item.truncated
        self._lane.observe_request(len(inputs), tokens, truncated)
        if self._record is not None:
            self._record.inputs += len(inputs)
            self._record.tokens += tokens
        return tokens, truncated

    def ran(self, queue_s: float, batch_size: int) -> None:
        """Note the end of inference, how long its first batch was queued, and the size of that batch."""
        self._ran, self._queue_s = time.perf_counter(), queue_s
        if self._record is not None:
            self._record.batch_size = batch_size

    def finish(self) -> Timing:
        """Count the stages and return them."""
        timing = Timing(
            tokenize=self._tokenized - self._started,
            run=self._ran - self._tokenized,
            postprocess=time.perf_counter() - self._ran,
            queue=self._queue_s,
        )
        if self._record is not None:
            self._record.tokenize_started = self._started
            self._record.stages_s = (timing.tokenize, timing.queue, timing.run - timing.queue, timing.postprocess)
        self._lane.observe_tokenize(timing.tokenize)
        self._lane.observe_postprocess(timing.postprocess)
        return timing
