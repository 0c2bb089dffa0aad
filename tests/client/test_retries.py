"""attendant-client's retry policy: retryable errors, delays and limits."""

import time

import pytest
from attendant_client import AttendantError, RetryPolicy
from attendant_client.connections import CHANNEL_OPTIONS


def error(reason: str, retry_after_s: float | None = None) -> AttendantError:
    return AttendantError("RESOURCE_EXHAUSTED", reason, "full", retry_after_s=retry_after_s)


def test_delay_is_the_hint_of_the_server() -> None:
    delay = RetryPolicy().delay_s(error("QUEUE_FULL", 2.0), 1, None)
    assert delay is not None
    assert 2.0 <= delay <= 2.5


def test_delay_is_multiplied_by_4_without_a_hint() -> None:
    policy = RetryPolicy(max_attempts=9, initial_delay_s=0.1, max_delay_s=2.0)
    delays = [policy.delay_s(error("DRAINING"), attempt, None) or 0 for attempt in (1, 2, 3, 8)]
    for delay, expected in zip(delays, (0.1, 0.4, 1.6, 2.0), strict=True):
        assert expected <= delay <= 1.25 * expected


def test_attempts_last_longer_than_the_reconnection_of_grpc() -> None:
    """Otherwise, all attempts fail with the error of an earlier connection, although the server is back."""
    policy = RetryPolicy()
    delays = [policy.delay_s(error("UNAVAILABLE"), attempt, None) or 0 for attempt in range(1, policy.max_attempts)]
    backoff_s = dict(CHANNEL_OPTIONS)["grpc.max_reconnect_backoff_ms"] / 1000
    assert sum(delays) > 1.2 * backoff_s  # gRPC adds up to 20% jitter


@pytest.mark.parametrize("reason", ["INVALID_ARGUMENT", "TOO_LONG", "INTERNAL", "DEADLINE_EXCEEDED"])
def test_permanent_errors_are_not_retried(reason: str) -> None:
    assert RetryPolicy().delay_s(error(reason, 1.0), 1, None) is None


def test_last_attempt_is_not_retried() -> None:
    assert RetryPolicy(max_attempts=3).delay_s(error("QUEUE_FULL"), 3, None) is None


def test_error_is_not_retried_when_the_deadline_is_too_close() -> None:
    assert RetryPolicy().delay_s(error("QUEUE_FULL", 2.0), 1, time.monotonic() + 1) is None
