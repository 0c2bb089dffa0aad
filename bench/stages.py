"""Mean request time per stage between two readings of /metrics."""

from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

STAGES = ("tokenize", "queue", "inference", "postprocess")
STAGE_METRIC = "attendant_stage_duration_seconds"
REQUEST_METRIC = "attendant_request_duration_seconds"


@dataclass(frozen=True)
class Reading:
    """Sums and counts of the stage and request histograms."""

    sums: dict[str, float]
    counts: dict[str, float]

    @classmethod
    def of(cls, text: str) -> "Reading":
        """Parse the metrics of the fast lane, and of successful requests in all APIs."""
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name, _, kind = sample.name.rpartition("_")
                if kind not in ("sum", "count"):
                    continue
                if name == STAGE_METRIC and sample.labels["lane"] == "fast":
                    key = sample.labels["stage"]
                elif name == REQUEST_METRIC and sample.labels["lane"] == "fast":
                    key = "request"
                else:
                    continue
                totals = sums if kind == "sum" else counts
                totals[key] = totals.get(key, 0.0) + sample.value
        return cls(sums, counts)

    @classmethod
    def take(cls, admin: str) -> "Reading":
        """Read the metrics from a server's admin URL."""
        return cls.of(httpx.get(f"{admin}/metrics", timeout=10).raise_for_status().text)

    def means_since(self, earlier: "Reading") -> dict[str, float]:
        """Return means in milliseconds per stage and per request. Inference is per batch, which requests share."""
        means = {}
        for key in (*STAGES, "request"):
            count = self.counts.get(key, 0.0) - earlier.counts.get(key, 0.0)
            if count:
                means[key] = (self.sums[key] - earlier.sums.get(key, 0.0)) / count * 1000
        return means
