"""Bench targets and the verdicts on them."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Target:
    """A threshold for a measurement: its name in README.md, the measured quantity and its unit."""

    name: str
    what: str
    sense: Literal[">=", "<="]
    threshold: float
    unit: str = ""


def _at_least(name: str, what: str, threshold: float, unit: str = "") -> Target:
    return Target(name, what, ">=", threshold, unit)


def _at_most(name: str, what: str, threshold: float, unit: str = "") -> Target:
    return Target(name, what, "<=", threshold, unit)


OF_LIMIT = "of the limit"
TARGETS = {
    "w32": _at_least("C1", "W32, float JSON", 0.88, OF_LIMIT),
    "w32_base64": _at_least("C1", "W32, base64", 0.92, OF_LIMIT),
    "w32_grpc": _at_least("C1", "W32, gRPC", 0.92, OF_LIMIT),
    "p8": _at_least("C2", "P8", 0.90, OF_LIMIT),
    "w1_64": _at_least("C3", "W1 c=64", 0.80, OF_LIMIT),
    "w1_64_tail": _at_most("C3", "p99 of W1 c=64", 2.0, "x its p50"),
    "w1_512": _at_least("C3", "W1 c=512", 0.95, "of W1 c=64"),
    "w1_512_failed": _at_most("C3", "failed requests of W1 c=512", 0),
    "w1_1": _at_most("C4", "p50 of W1 c=1 above a bare run", 1.2, "ms"),
    "peers_w1_1": _at_most("C5", "p50 of W1 c=1", 0.85, "x the best peer"),
    "peers_w1_64": _at_least("C5", "W1 c=64", 3.0, "x the best peer"),
    "peers_w32": _at_least("C5", "W32", 2.0, "x the best peer"),
    "peers_p8": _at_least("C5", "P8", 1.3, "x the best peer"),
    "infinity_w1_64": _at_least("C5", "W1 c=64", 4.2, "x the better infinity engine, bfloat16 unit"),
    "infinity_w32": _at_least("C5", "W32", 4.2, "x the better infinity engine, bfloat16 unit"),
    "infinity_w1_64_float32": _at_least("C5", "W1 c=64", 2.2, "x the better infinity engine, no bfloat16 unit"),
    "infinity_w32_float32": _at_least("C5", "W32", 2.2, "x the better infinity engine, no bfloat16 unit"),
    "t32_base64": _at_least("C6", "T32, base64", 0.80, OF_LIMIT),
    "t32_grpc": _at_least("C6", "T32, gRPC", 0.80, OF_LIMIT),
    "a1_tail": _at_most("C7", "p99 of W1 c=16 beside A1 c=8", 1.5, "x alone"),
    "a1_rate": _at_least("C7", "rate of A1 c=8 beside W1 c=16", 0.2, "of its rate alone"),
    "a1_single": _at_most("C7", "p50 of A1 c=1", 1.4, "x transformers eager in process"),
    "length": _at_least("C8", "slowest text length, 8 to 256 tokens", 0.85, "of the fastest"),
    "in_flight": _at_least("C8", "slowest number in flight, 16 to 256", 0.85, "of the fastest"),
    "in_flight_4": _at_least("C8", "4 texts in flight", 0.75, "of the fastest"),
    "soak_growth": _at_most("C8", "change of memory after five minutes", 0.05, "of it"),
    "soak_errors": _at_most("C8", "responses with status 5xx", 0),
    "soak_peak": _at_most("C8", "high-water mark of memory", 900, "MiB"),
    "goodput": _at_least("C9", "goodput at 4 x capacity", 0.90, "of the peak"),
    "rejection_tail": _at_most("C9", "p99 of rejections at 4 x capacity", 50, "ms"),
    "rejection_cpu": _at_most("C9", "event loop's CPU per rejection", 0.1, "ms"),
    "accepted_tail": _at_most("C9", "p99 of accepted requests at 4 x above max_queue_ms", 500, "ms"),
    "ready": _at_most("C10", "start to ready, warm", 3.0, "s"),
    "at_rest": _at_most("C10", "memory at rest", 450, "MiB"),
    "import": _at_most("C10", "import service.app", 0.3, "s"),
    "bfloat16": _at_least("C11", "smallest cosine, bfloat16", 0.9999),
    "float16": _at_least("C11", "smallest cosine, float16", 0.9999),
    "float32": _at_least("C11", "smallest cosine, float32", 0.999999),
    "int8_rate": _at_least("C12", "W32 in int8", 2.0, "x float32"),
    "int8": _at_least("C12", "smallest cosine, int8", 0.998),
    "int8_alone": _at_least("C12", "smallest cosine, int8 alone to int8 packed", 0.9999),
    "int8_export": _at_most("C12", "export with int8", 30, "s"),
    "new_connections": _at_least("C13", "N1", 0.7, "of W1 c=16"),
    "gzip": _at_least("C13", "W1 c=64 with gzip", 0.95, "of W1 c=64 without"),
    "fair_tail": _at_most("C14", "p99 of W1 c=4 beside 256 passages", 4.0, "x alone (or 150 ms more)"),
    "fair_failed": _at_most("C14", "failed requests of W1 c=4 beside 256 passages", 0),
    "fair_bulk": _at_least("C14", "rate of 256 passages beside W1 c=4", 0.7, "of its rate alone"),
    "fair_progress": _at_least("C14", "rate of 256 passages beside W1 c=64", 0.05, "of its rate alone"),
    "fair_deadlines": _at_most("C14", "failed requests of 256 passages", 0),
    "cost_tei": _at_most("C15", "time of W32 through TEI", 1.10, "x the native API"),
    "cost_oip": _at_most("C15", "time of W32 through the Open Inference Protocol", 1.10, "x the native API"),
    "cost_oip_binary": _at_most("C15", "the same with binary output", 1.10, "x the native API"),
    "models_tail": _at_most("C15", "p99 of W1 c=4 of one model beside a flood of another one", 4.0, "x alone"),
    "models_failed": _at_most("C15", "failed requests of W1 c=4 beside a flood of another model", 0),
    "embed": _at_least("C16", "attendant embed", 0.90, OF_LIMIT),
    "embed_peak": _at_most("C16", "peak memory of attendant embed", 1024, "MiB"),
    "embed_ray": _at_most("C16", "attendant embed --ray, two local workers, start included", 1.10, "x without"),
    "tls": _at_least("C20", "W1 c=64 with TLS", 0.95, "of W1 c=64 without"),
    "traces": _at_least("C20", "W1 c=64 with a span for each request", 0.97, "of W1 c=64 without"),
    "loop_tail": _at_most("C21", "p99 of W1 c=512 with a simulated device", 3.0, "x its p50"),
    "loop_longest": _at_most("C21", "longest wait of W1 c=512 with a simulated device", 10.0, "x its p50"),
    "loop_workers": _at_most("C21", "CPU time per text of W32 with two workers", 1.1, "x with one"),
    "livez": _at_most("", "slowest /livez beside the worst requests, above an idle server", 50, "ms"),
    "preparation": _at_most("", "preparation of 20,000 characters", 300, "ms"),
    "failed": _at_most("", "failed requests", 0),
    "norm": _at_most("", "norm of 128 tokens", 3.0, "x its probs"),
    "gpu_full": _at_least("G1", "full batches of 128 tokens per text", 2e6, "tokens/s"),
    "gpu_mixed": _at_least("G1", "mixed sentences", 0.8, "of full batches"),
    "gpu_single": _at_most("G2", "one text of 128 tokens, p50", 0.7, "ms"),
    "gpu_grpc": _at_least("G3", "mixed sentences through gRPC", 1e6, "tokens/s"),
    "gpu_kernels": _at_least("G4", "layers with only fast attention kernels", 1.0, "of all"),
    "gpu_fallback": _at_most("G4", "kinds of operator off the GPU", 0),
    "gpu_cosine": _at_least("G5", "smallest cosine", 0.999),
    "gpu_families": _at_least("G5", "smallest cosine of golden vectors of any architecture", 0.999),
    "gpu_workers": _at_least("G6", "MiniLM-L6 through gRPC, with several workers", 100_000, "texts/s"),
    "gpu_minilm": _at_least("G6", "MiniLM-L6 through gRPC", 20_000, "texts/s"),
}


@dataclass(frozen=True)
class Verdict:
    """A target and its measured value, or None with the reason in `note`."""

    target: Target
    measured: float | None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """True if the target was met, or None without a measurement. NaN fails every target."""
        if self.measured is None:
            return None
        threshold = self.target.threshold
        return self.measured >= threshold if self.target.sense == ">=" else self.measured <= threshold

    def describe(self) -> str:
        """Format as `pass  C2   P8: 0.93 (>= 0.9 of the limit, by 3%)`."""
        target = self.target
        name = f"{target.name:<4} {target.what}"
        if self.measured is None:
            return f"--    {name}: not measured, {self.note}"
        has_margin = target.threshold and math.isfinite(self.measured)
        margin = f", by {abs(self.measured - target.threshold) / abs(target.threshold):.0%}" if has_margin else ""
        word = "pass" if self.passed else "FAIL"
        # Cosines differ in their last digits.
        measured = f"{self.measured:.7f}" if "cosine" in target.what else f"{self.measured:.3g}"
        limits = f"{target.sense} {target.threshold:g} {target.unit}".rstrip()
        return f"{word}  {name}: {measured} ({limits}{margin})" + (f", {self.note}" if self.note else "")


def judge(key: str, measured: float, note: str = "") -> Verdict:
    return Verdict(TARGETS[key], float(measured), note)


def not_measured(key: str, reason: str) -> Verdict:
    return Verdict(TARGETS[key], None, reason)


def all_passed(verdicts: Iterable[Verdict]) -> bool:
    return all(verdict.passed is not False for verdict in verdicts)
