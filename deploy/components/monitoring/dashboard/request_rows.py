"""Rows about requests: service level objectives and traffic."""

from deploy.components.monitoring.dashboard.grafana import Panel, Query, Row
from deploy.components.monitoring.dashboard.queries import NAMESPACE, mean, metric, quantile, rate

OBJECTIVE = "0.001"


def burn(window: str) -> Query:
    return Query(f"namespace:attendant_failed_requests:ratio{window}{NAMESPACE} / {OBJECTIVE}", window)


OBJECTIVES = Row(
    "Service level objectives",
    [
        Panel(
            "Availability, 3 days",
            "Share of requests without server errors. Rejections with 429 and rejections during a rollout do "
            "not count. Objective: 99.9%.",
            "percentunit",
            [Query(f"1 - namespace:attendant_failed_requests:ratio3d{NAMESPACE}", "availability", instant=True)],
            type="stat",
            width=4,
            decimals=3,
            thresholds=((None, "red"), (0.999, "green")),
        ),
        Panel(
            "Error budget left, 30 days",
            "Unused share of the failures that the objective allows in 30 days, as far back as Prometheus keeps data.",
            "percentunit",
            [
                Query(
                    f"1 - avg_over_time(namespace:attendant_failed_requests:rate5m{NAMESPACE}[30d]) / "
                    f"avg_over_time(namespace:attendant_requests:rate5m{NAMESPACE}[30d]) / {OBJECTIVE}",
                    "budget left",
                    instant=True,
                )
            ],
            type="stat",
            width=4,
            decimals=1,
            thresholds=((None, "red"), (0, "orange"), (0.5, "green")),
        ),
        Panel(
            "Burn rate",
            "1 exhausts the error budget of 30 days in 30 days. Alerts: 14.4 over 1 h and 5 m, 6 over 6 h and 30 m, 1 "
            "over 3 d and 6 h.",
            "short",
            [burn(window) for window in ("5m", "1h", "6h", "3d")],
        ),
        Panel(
            "Slow and rejected requests",
            "Slow: share of accepted requests over the latency objective (up to 1% is acceptable). Rejected: share of "
            "all requests that got 429 or RESOURCE_EXHAUSTED because the queue was full; the alert fires at 5%.",
            "percentunit",
            [
                Query(f"namespace:attendant_slow_requests:ratio5m{NAMESPACE}", "slow"),
                Query(f"namespace:attendant_shed_requests:ratio5m{NAMESPACE}", "rejected, queue full"),
            ],
        ),
        *(
            Panel(
                f"Latency of {label}",
                "Duration of successful requests by API and lane, excluding streams.",
                "s",
                [
                    Query(
                        quantile(share, "attendant_request_duration_seconds", "api, lane"),
                        f"{label} {{{{api}}}} {{{{lane}}}}",
                    )
                ],
            )
            for share, label in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
        ),
    ],
)

TRAFFIC = Row(
    "Traffic",
    [
        Panel(
            "Requests by endpoint",
            "Responses per second. A stream counts once, when it ends.",
            "reqps",
            [Query(rate("attendant_requests_total", "api, endpoint"), "{{api}} {{endpoint}}")],
        ),
        Panel(
            "Requests by code",
            "Responses per second by HTTP status or gRPC code.",
            "reqps",
            [Query(rate("attendant_requests_total", "api, code"), "{{api}} {{code}}")],
            stacked=True,
        ),
        Panel(
            "Rejections by reason",
            "Rejected requests per second. The lane is none if no lane had been selected yet.",
            "reqps",
            [Query(rate("attendant_rejected_requests_total", "reason, api, lane"), "{{reason}} {{api}} {{lane}}")],
        ),
        Panel(
            "Requests by caller",
            "Requests per second by caller of their API key. Rejected requests exceed a server limit or a quota. "
            "Cancelled requests were cancelled by the caller.",
            "reqps",
            [Query(rate("attendant_caller_requests_total", "caller, outcome"), "{{caller}} {{outcome}}")],
        ),
        Panel(
            "Tokens by caller",
            "Tokens per second in requests, by caller of their API key.",
            "ops",
            [Query(rate("attendant_caller_tokens_total", "caller"), "{{caller}}")],
        ),
        Panel(
            "Cancelled inputs",
            "Inputs per second discarded because their request was cancelled, expired or failed. Inputs discarded "
            "in a batch have already cost inference time.",
            "ops",
            [Query(rate("attendant_cancelled_inputs_total", "stage"), "in {{stage}}")],
        ),
        Panel(
            "Requests in progress",
            "Requests from headers received to response sent, and open connections.",
            "short",
            [
                Query(f"sum by (pod) ({metric('attendant_requests_in_flight')})", "{{pod}}"),
                Query(f"sum by (pod) ({metric('attendant_http_connections')})", "{{pod}} REST connections"),
                Query(f"sum by (pod) ({metric('attendant_grpc_connections')})", "{{pod}} gRPC connections"),
            ],
        ),
        Panel(
            "Request and response size",
            "Mean inputs and tokens per request. Compare them with the sizes you planned capacity for.",
            "short",
            [
                Query(mean("attendant_request_inputs", "namespace"), "inputs per request"),
                Query(mean("attendant_request_tokens", "namespace"), "tokens per request"),
            ],
            width=4,
        ),
        Panel(
            "Response bytes",
            "Mean response size.",
            "bytes",
            [Query(mean("attendant_response_bytes", "api"), "{{api}}")],
            width=4,
        ),
    ],
)
