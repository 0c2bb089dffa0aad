"""For each alert, series that make it fire and similar ones that must not."""

from collections.abc import Mapping
from dataclasses import dataclass

Series = Mapping[str, str]
"""Values by series in promtool notation, one value per minute."""

NAMESPACE = 'namespace="attendant"'
POD = 'namespace="attendant", pod="attendant-0"'
OTHER_POD = 'namespace="attendant", pod="attendant-1"'
OK = f'attendant_requests_total{{{POD}, api="rest", endpoint="/v1/encode", code="200"}}'
FAILED = f'attendant_requests_total{{{POD}, api="rest", endpoint="/v1/encode", code="500"}}'
FAILED_RPC = f'attendant_requests_total{{{POD}, api="grpc", endpoint="/Encode", code="UNAVAILABLE"}}'
FULL = f'attendant_requests_total{{{POD}, api="rest", endpoint="/v1/encode", code="429"}}'
EXPIRED = f'attendant_requests_total{{{POD}, api="rest", endpoint="/v1/encode", code="504"}}'
SHORT = f'attendant_rejected_requests_total{{{POD}, reason="short_deadline", api="rest", lane="fast"}}'
DRAINING = f'attendant_rejected_requests_total{{{POD}, reason="draining", api="grpc", lane="none"}}'
UNSUPPORTED = f'attendant_requests_total{{{POD}, api="rest", endpoint="/v1/attend", code="501"}}'
DURATION = "attendant_request_duration_seconds"
ENCODE_OK = f'{POD}, api="rest", lane="fast"'
SHED = f'attendant_rejected_requests_total{{{POD}, reason="queue_full", api="rest", lane="fast"}}'
QUEUE = f'attendant_stage_duration_seconds_bucket{{{POD}, stage="queue", lane="fast"'
LAG = f"attendant_event_loop_lag_seconds_bucket{{{POD}"
DEPLOYMENT = f'{NAMESPACE}, deployment="attendant"'
AVAILABLE = f"kube_deployment_status_replicas_available{{{DEPLOYMENT}}}"
DESIRED = f"kube_deployment_spec_replicas{{{DEPLOYMENT}}}"
HPA = f'{NAMESPACE}, horizontalpodautoscaler="attendant"'


@dataclass(frozen=True)
class Case:
    """Input for one alert: `fires` triggers it at `minutes`, `silent` does not; `labels` are the expected alert
    labels.
    """

    alert: str
    labels: Mapping[str, str]
    minutes: int
    fires: Series
    silent: Series


def total(per_minute: float) -> str:
    """Return a counter with a constant increase per minute."""
    return f"0+{per_minute}x480"


def phases(*steps: tuple[float, int]) -> str:
    """Return a counter whose increase per minute changes. Each step is an increase per minute and its minutes."""
    value, parts = 0.0, []
    for per_minute, minutes in steps:
        parts.append(f"{value}+{per_minute}x{minutes - 1}")
        value += per_minute * minutes
    return " ".join(parts)


def requests(code: str, api: str = "rest") -> str:
    return f'attendant_requests_total{{{POD}, api="{api}", endpoint="/v1/encode", code="{code}"}}'


def caller(outcome: str) -> str:
    return f'attendant_caller_requests_total{{{POD}, caller="search", outcome="{outcome}"}}'


def handshakes(port: str) -> str:
    return f'attendant_tls_handshake_failures_total{{{POD}, port="{port}", reason="rejected_by_client"}}'


def closed(reason: str) -> str:
    return f'attendant_closed_connections_total{{{POD}, api="grpc", reason="{reason}"}}'


def ready(*values: int) -> dict[str, str]:
    return {f'attendant_ready{{{NAMESPACE}, pod="attendant-{n}"}}': f"{value}x60" for n, value in enumerate(values)}


def model(pod: str, digest: str = "sha256:a", precision: str = "bfloat16", name: str = "m") -> str:
    labels = f'model="{name}", digest="{digest}", precision="{precision}", provider="openvino"'
    return f"attendant_model_info{{{pod}, {labels}}}"


def slow(share: float, per_minute: float = 100) -> dict[str, str]:
    """Return a histogram in which a share of the requests takes longer than 1 s."""
    return {
        f"{DURATION}_count{{{ENCODE_OK}}}": total(per_minute),
        f'{DURATION}_bucket{{{ENCODE_OK}, le="1.0"}}': total(per_minute * (1 - share)),
    }


def one_namespace(severity: str, **labels: str) -> dict[str, str]:
    return {"severity": severity, "namespace": "attendant"} | labels


REQUESTS = (
    Case(
        "AttendantErrorBudgetBurnFast",
        one_namespace("page"),
        70,
        {OK: total(100), FAILED: total(1), FAILED_RPC: total(1), DRAINING: total(0)},
        {OK: total(100), FAILED: total(1), FAILED_RPC: total(20), DRAINING: total(20), UNSUPPORTED: total(20)},
    ),
    # The first errors on a server that has not rejected anything yet, and clients with 1 ms deadlines.
    Case(
        "AttendantErrorBudgetBurnFast",
        one_namespace("page"),
        70,
        {OK: total(100), FAILED: "0x60 100+100x60"},
        {OK: total(100), EXPIRED: total(50), SHORT: total(50)},
    ),
    # Messages of a stream are rejected without a request that fails.
    Case(
        "AttendantErrorBudgetBurnFast",
        one_namespace("page"),
        70,
        {OK: total(100), FAILED: total(2), SHORT: total(50), DRAINING: total(50)},
        {OK: total(100), EXPIRED: total(50), SHORT: total(60)},
    ),
    Case(
        "AttendantErrorBudgetBurnSteady",
        one_namespace("page"),
        400,
        {OK: total(100), FAILED: total(0.8), DRAINING: total(0)},
        # Too few requests: 72 in 6 hours.
        {OK: total(0.1), FAILED: total(0.1), DRAINING: total(0)},
    ),
    Case(
        "AttendantErrorBudgetBurnSlow",
        one_namespace("ticket"),
        470,
        {OK: total(100), FAILED: total(0.2), DRAINING: total(0)},
        {OK: total(100), FAILED: total(0.08), DRAINING: total(0)},
    ),
    Case("AttendantLatencyBudgetBurnFast", one_namespace("page"), 70, slow(0.2), slow(0.1)),
    # An overlay names a bucket that does not exist.
    Case(
        "AttendantLatencyBudgetBurnFast",
        one_namespace("page"),
        70,
        {f"{DURATION}_count{{{ENCODE_OK}}}": total(100)},
        slow(0),
    ),
    Case("AttendantLatencyBudgetBurnSlow", one_namespace("ticket"), 400, slow(0.08), slow(0.9, per_minute=0.2)),
    Case(
        "AttendantShedRateHigh",
        one_namespace("page"),
        30,
        {OK: total(90), FULL: total(10), SHED: total(10)},
        {OK: total(90), FAILED_RPC: total(10), DRAINING: total(10)},
    ),
    Case(
        "AttendantShedBudgetBurn",
        one_namespace("ticket"),
        470,
        {OK: total(95.1), FULL: total(4.9), SHED: total(4.9)},
        {OK: total(99.1), FULL: total(0.9), SHED: total(0.9)},
    ),
)

CLIENTS = (
    # Clients give up, and no request has ever succeeded.
    Case(
        "AttendantMostRequestsFail",
        one_namespace("page"),
        30,
        {requests("499"): total(30), requests("CANCELLED", "grpc"): total(30)},
        {OK: total(60), requests("499"): total(40)},
    ),
    # Invalid keys. A few requests are no outage.
    Case(
        "AttendantMostRequestsFail",
        one_namespace("page"),
        30,
        {OK: total(50), requests("401"): total(30), requests("UNAUTHENTICATED", "grpc"): total(30)},
        {requests("401"): total(5)},
    ),
    # Short deadlines, which the objective does not count. A caller over its quota that ignores Retry-After.
    Case(
        "AttendantMostRequestsFail",
        one_namespace("page"),
        30,
        {EXPIRED: total(100), SHORT: total(100)},
        {OK: total(10), FULL: total(1000), requests("404"): total(8)},
    ),
    Case(
        "AttendantClientErrorsHigh",
        one_namespace("ticket", code="422"),
        90,
        {OK: total(70), requests("422"): total(30)},
        # Server errors and rejections have their own alerts. The first 404 came 10 minutes ago.
        {OK: total(70), FAILED: total(30), FULL: total(70), requests("404"): f"_x80 {total(70)}"},
    ),
    # A quota, without any accepted request.
    Case(
        "AttendantCallerRequestsFail",
        one_namespace("ticket", caller="search"),
        50,
        {caller("rejected"): total(10)},
        {caller("ok"): total(60), caller("rejected"): total(20), caller("cancelled"): total(20)},
    ),
    Case(
        "AttendantTlsHandshakesFail",
        one_namespace("page"),
        30,
        {handshakes("rest"): total(20)},
        {handshakes("rest"): total(5), handshakes("admin"): total(20)},
    ),
    # gRPC still works, or only some clients fail.
    Case(
        "AttendantTlsHandshakesFail",
        one_namespace("page"),
        30,
        {handshakes("rest"): total(20), OK: total(1), requests("OK", "grpc"): total(100)},
        {handshakes("rest"): total(20), OK: total(100)},
    ),
    # Load that decreases within hours, and too little load.
    Case(
        "AttendantTrafficLost",
        one_namespace("page"),
        350,
        {OK: phases((600, 150), (0, 330))},
        {
            OK: phases((1200, 90), *((1200 / 2**n, 30) for n in range(8)), (0, 150)),
            'attendant_requests_total{namespace="b", pod="b-0", code="200"}': phases((30, 150), (0, 330)),
        },
    ),
    # A job of 2 hours that runs every day.
    Case(
        "AttendantTrafficLost",
        one_namespace("page"),
        1600,
        {OK: phases((600, 1560), (0, 60))},
        {OK: phases((600, 120), (0, 1320), (600, 120), (0, 60))},
    ),
    Case(
        "AttendantApiTrafficLost",
        one_namespace("ticket", api="grpc"),
        200,
        {OK: total(600), requests("OK", "grpc"): phases((600, 150), (0, 60))},
        {OK: total(600), requests("OK", "grpc"): phases((30, 150), (0, 60))},
    ),
    Case(
        "AttendantConnectionsRejected",
        one_namespace("page", api="grpc"),
        30,
        {closed("limit"): total(12)},
        {closed("limit"): total(3), closed("idle"): total(100), closed("stalled"): total(100)},
    ),
    # A server without the series of one API.
    *(
        Case(
            "AttendantConnectionsNearLimit",
            one_namespace("ticket", pod="attendant-0", api=api),
            20,
            {connections: "1900x60", f'attendant_connection_limit{{{POD}, api="{api}"}}': "2048x60"},
            {connections: "1500x60", f'attendant_connection_limit{{{POD}, api="{api}"}}': "2048x60"},
        )
        for api, name in (("rest", "http"), ("grpc", "grpc"))
        for connections in (f"attendant_{name}_connections{{{POD}}}",)
    ),
)

SERVICE = (
    Case(
        "AttendantQueueWaitHigh",
        one_namespace("ticket", lane="fast"),
        30,
        {f'{QUEUE}, le="1.0"}}': total(90), f'{QUEUE}, le="5.0"}}': total(100), f'{QUEUE}, le="+Inf"}}': total(100)},
        {f'{QUEUE}, le="1.0"}}': total(100), f'{QUEUE}, le="5.0"}}': total(100), f'{QUEUE}, le="+Inf"}}': total(100)},
    ),
    Case(
        "AttendantNoReadyReplicas",
        one_namespace("page"),
        10,
        {f"attendant_ready{{{POD}}}": "0x60", f"attendant_ready{{{OTHER_POD}}}": "0x60"},
        {f"attendant_ready{{{POD}}}": "0x60", f"attendant_ready{{{OTHER_POD}}}": "1x60"},
    ),
    # Without kube-state-metrics, and for a Deployment whose pods Prometheus does not find.
    Case("AttendantFewReplicasReady", one_namespace("page"), 20, ready(0, 1, 0), ready(0, 1)),
    Case("AttendantFewReplicasReady", one_namespace("page"), 20, {DESIRED: "10x60"}, {DESIRED: "0x60"}),
    Case(
        "AttendantFewReplicasReady",
        one_namespace("page"),
        20,
        {DESIRED: "10x60", AVAILABLE: "1x60"},
        {DESIRED: "2x60", AVAILABLE: "1x60"},
    ),
    # Prometheus finds no replicas, with and without kube-state-metrics, or only one of two.
    Case("AttendantMonitoringLost", {"severity": "page"}, 10, {OK: total(1)}, {f"attendant_ready{{{POD}}}": "1x60"}),
    Case(
        "AttendantMonitoringLost",
        one_namespace("page"),
        10,
        {f"attendant_ready{{{POD}}}": "1x60", AVAILABLE: "2x60"},
        {f"attendant_ready{{{POD}}}": "1x60", f"attendant_ready{{{OTHER_POD}}}": "1x60", AVAILABLE: "2x60"},
    ),
    # No scrape succeeds in one of two namespaces.
    Case(
        "AttendantMonitoringLost",
        one_namespace("page"),
        10,
        {f'up{{{POD}, job="attendant"}}': "0x60", 'attendant_ready{namespace="b"}': "1x60"},
        {f'up{{{POD}, job="attendant"}}': "0x60", f'up{{{OTHER_POD}, job="attendant"}}': "1x60", **ready(1)},
    ),
    Case(
        "AttendantLaneFailed",
        one_namespace("ticket", pod="attendant-0", lane="explain", model="m"),
        10,
        {f'attendant_lane_up{{{POD}, lane="explain", model="m"}}': "0x60"},
        {
            f'attendant_lane_up{{{POD}, lane="explain", model="m"}}': "1x60",
            f'attendant_lane_up{{{POD}, lane="fast", model="m"}}': "0x60",
        },
    ),
    Case(
        "AttendantBatchStalled",
        one_namespace("page", pod="attendant-0", lane="fast", model="m"),
        10,
        {f'attendant_stalled_batches{{{POD}, lane="fast", model="m"}}': "1x60"},
        {f'attendant_stalled_batches{{{POD}, lane="fast", model="m"}}': "0x60"},
    ),
    Case(
        "AttendantBackendFailed",
        one_namespace("page", pod="attendant-0"),
        10,
        {f"attendant_ready{{{POD}}}": "0x60", f"attendant_draining{{{POD}}}": "0x60", model(POD): "1x60"},
        {
            # One replica is draining, the other one is still loading its model.
            f"attendant_ready{{{POD}}}": "0x60", f"attendant_draining{{{POD}}}": "1x60", model(POD): "1x60",
            f"attendant_ready{{{OTHER_POD}}}": "0x60", f"attendant_draining{{{OTHER_POD}}}": "0x60",
        },
    ),
    Case(
        "AttendantInferenceErrors",
        one_namespace("ticket", pod="attendant-0", lane="fast"),
        30,
        {
            f'attendant_inference_errors_total{{{POD}, lane="fast"}}': total(2),
            f'attendant_batch_size_count{{{POD}, lane="fast"}}': total(98),
        },
        {
            f'attendant_inference_errors_total{{{POD}, lane="fast"}}': total(0.5),
            f'attendant_batch_size_count{{{POD}, lane="fast"}}': total(99),
        },
    ),
    # No batch has succeeded, or none has failed.
    Case(
        "AttendantInferenceErrors",
        one_namespace("ticket", pod="attendant-0", lane="fast"),
        30,
        {f'attendant_inference_errors_total{{{POD}, lane="fast"}}': total(2)},
        {f'attendant_batch_size_count{{{POD}, lane="fast"}}': total(99)},
    ),
    Case(
        "AttendantNonFiniteOutputs",
        one_namespace("ticket", pod="attendant-0", lane="explain"),
        12,
        {f'attendant_nonfinite_outputs_total{{{POD}, lane="explain"}}': "0x8 1x20"},
        {f'attendant_nonfinite_outputs_total{{{POD}, lane="explain"}}': "1x60"},
    ),
    Case(
        "AttendantEventLoopLag",
        one_namespace("ticket", pod="attendant-0"),
        30,
        {f'{LAG}, le="0.25"}}': total(110), f'{LAG}, le="0.5"}}': total(120), f'{LAG}, le="+Inf"}}': total(120)},
        {f'{LAG}, le="0.25"}}': total(120), f'{LAG}, le="0.5"}}': total(120), f'{LAG}, le="+Inf"}}': total(120)},
    ),
    # Two replicas: the ratio cannot exceed 2.
    Case(
        "AttendantReplicaImbalance",
        one_namespace("ticket"),
        40,
        {f"attendant_tokens_total{{{POD}}}": total(60_000), f"attendant_tokens_total{{{OTHER_POD}}}": total(600)},
        {f"attendant_tokens_total{{{POD}}}": total(60_000), f"attendant_tokens_total{{{OTHER_POD}}}": total(10_000)},
    ),
    Case(
        "AttendantReplicaImbalance",
        one_namespace("ticket"),
        40,
        {f'attendant_tokens_total{{{NAMESPACE}, pod="{n}"}}': total(60_000 if n == 0 else 10_000) for n in range(4)},
        # A single replica, or a light load.
        {f"attendant_tokens_total{{{POD}}}": total(60_000), 'attendant_tokens_total{namespace="b", pod="0"}': total(60),
         'attendant_tokens_total{namespace="b", pod="1"}': total(0)},
    ),
    # One replica has not had a request yet, or is not ready.
    Case(
        "AttendantReplicaImbalance",
        one_namespace("ticket"),
        40,
        {f"attendant_tokens_total{{{POD}}}": total(60_000), **ready(1, 1)},
        {f"attendant_tokens_total{{{POD}}}": total(60_000), **ready(1, 0)},
    ),
    Case(
        "AttendantModelDigestSkew",
        one_namespace("ticket", model="m"),
        40,
        {model(POD): "1x60", model(OTHER_POD, digest="sha256:b"): "1x60"},
        # A rollout that started 20 minutes ago, and a different model.
        {
            model(POD): "1x60", model(OTHER_POD, digest="sha256:b"): "_x19 1x60",
            model(POD, digest="sha256:c", name="n"): "1x60",
        },
    ),
    Case(
        "AttendantPrecisionSkew",
        one_namespace("ticket", model="m", digest="sha256:a"),
        40,
        {model(POD): "1x60", model(OTHER_POD, precision="float32"): "1x60"},
        {model(POD): "1x60", model(OTHER_POD): "1x60"},
    ),
    # promtool starts at 0, so these are seconds until the expiry.
    Case(
        "AttendantCertificateExpiring",
        one_namespace("page", pod="attendant-0", certificate="server"),
        70,
        {f'attendant_tls_certificate_expiry_timestamp_seconds{{{POD}, certificate="server"}}': "600000x80"},
        {f'attendant_tls_certificate_expiry_timestamp_seconds{{{POD}, certificate="server"}}': "900000x80"},
    ),
    Case(
        "AttendantReloadFailed",
        one_namespace("ticket", pod="attendant-0", subject="tls"),
        10,
        {f'attendant_reload_failing{{{POD}, subject="tls"}}': "1x60"},
        {f'attendant_reload_failing{{{POD}, subject="tls"}}': "0x5 1x2 0x60"},
    ),
    Case(
        "AttendantScrapeDown",
        one_namespace("ticket", pod="attendant-0", job="attendant"),
        10,
        {f'up{{{POD}, job="attendant"}}': "0x60"},
        {f'up{{{POD}, job="attendant"}}': "1x60", f'up{{{POD}, job="other"}}': "0x60"},
    ),
    # The job name that the operator gives without a jobLabel.
    Case(
        "AttendantScrapeDown",
        one_namespace("ticket", pod="attendant-0", job="attendant/attendant"),
        10,
        {f'up{{{POD}, job="attendant/attendant"}}': "0x60"},
        {f'up{{{POD}, job="monitoring/other"}}': "0x60"},
    ),
    Case(
        "AttendantLogLinesDropped",
        one_namespace("ticket", pod="attendant-0"),
        12,
        {f"attendant_log_lines_dropped_total{{{POD}}}": "0x8 1x20"},
        {f"attendant_log_lines_dropped_total{{{POD}}}": "100x60"},
    ),
    Case(
        "AttendantOpenFilesNearLimit",
        one_namespace("ticket", pod="attendant-0"),
        20,
        {f"process_open_fds{{{POD}}}": "900x60", f"process_max_fds{{{POD}}}": "1024x60", **ready(1)},
        # Not a process of this server.
        {f"process_open_fds{{{OTHER_POD}}}": "900x60", f"process_max_fds{{{OTHER_POD}}}": "1024x60", **ready(1)},
    ),
)  # fmt: skip

MEMORY = f'container_memory_working_set_bytes{{{POD}, container="server"}}'
LIMIT = f'kube_pod_container_resource_limits{{{POD}, container="server", resource="memory"}}'
RESTARTS = f'kube_pod_container_status_restarts_total{{{POD}, container="server"}}'
WORKER_RESTARTS = f"attendant_worker_restarts_total{{{POD}}}"
KILLED = f'kube_pod_container_status_last_terminated_reason{{{POD}, container="server", reason="OOMKilled"}}'
THROTTLED = f'container_cpu_cfs_throttled_periods_total{{{POD}, container="server"}}'
PERIODS = f'container_cpu_cfs_periods_total{{{POD}, container="server"}}'
XID = f'DCGM_FI_DEV_XID_ERRORS{{{POD}, gpu="0"}}'

CLUSTER = (
    # All pods are gone, but the Deployment exists.
    Case(
        "AttendantNoReadyReplicas",
        one_namespace("page"),
        10,
        {AVAILABLE: "0x60"},
        {
            AVAILABLE: "1x60",
            'kube_deployment_status_replicas_available{namespace="b", deployment="grafana"}': "0x60",
            f"attendant_ready{{{POD}}}": "1x60",
        },
    ),
    Case(
        "AttendantReplicasMissing",
        one_namespace("ticket", deployment="attendant"),
        50,
        {DESIRED: "10x60", AVAILABLE: "9x60"},
        {DESIRED: "10x60", AVAILABLE: "9x30 10x30"},
    ),
    # All replicas of the previous version are available.
    *(
        Case(
            "AttendantReplicasMissing",
            one_namespace("ticket", deployment="attendant"),
            50,
            {DESIRED: "2x60", AVAILABLE: "2x60"} | stuck,
            {DESIRED: "2x60", AVAILABLE: "2x60"} | dict.fromkeys(stuck, "0x60"),
        )
        for stuck in (
            {
                f'kube_deployment_status_condition{{{DEPLOYMENT}, condition="Progressing", status="false"}}': "1x60",
            },
            {
                f"kube_deployment_status_observed_generation{{{DEPLOYMENT}}}": "1x60",
                f"kube_deployment_metadata_generation{{{DEPLOYMENT}}}": "2x60",
            },
        )
    ),
    Case(
        "AttendantRestartLoop",
        one_namespace("page", pod="attendant-0"),
        30,
        {RESTARTS: "0x5 1x5 2x5 3x5 4x60"},
        {RESTARTS: "0x5 1x60"},
    ),
    Case(
        "AttendantWorkerRestarts",
        one_namespace("ticket", pod="attendant-0"),
        30,
        {WORKER_RESTARTS: "0x5 1x5 2x5 3x5 4x60"},
        {WORKER_RESTARTS: "0x5 1x60"},
    ),
    Case(
        "AttendantOOMKilled",
        one_namespace("ticket", pod="attendant-0"),
        10,
        {RESTARTS: "0x5 1x60", KILLED: "_x5 1x60"},
        # Killed long ago.
        {RESTARTS: "1x60", KILLED: "1x60"},
    ),
    Case(
        "AttendantMemoryNearLimit",
        one_namespace("ticket", pod="attendant-0", container="server"),
        20,
        {MEMORY: "950x60", LIMIT: "1000x60"},
        {MEMORY: "850x60", LIMIT: "1000x60"},
    ),
    Case(
        "AttendantCpuThrottled",
        one_namespace("ticket", pod="attendant-0"),
        30,
        {THROTTLED: total(300), PERIODS: total(600)},
        {THROTTLED: total(60), PERIODS: total(600)},
    ),
    Case(
        "AttendantHpaAtMax",
        one_namespace("ticket", horizontalpodautoscaler="attendant"),
        40,
        {
            f"kube_horizontalpodautoscaler_status_desired_replicas{{{HPA}}}": "10x60",
            f"kube_horizontalpodautoscaler_spec_max_replicas{{{HPA}}}": "10x60",
        },
        {
            f"kube_horizontalpodautoscaler_status_desired_replicas{{{HPA}}}": "9x60",
            f"kube_horizontalpodautoscaler_spec_max_replicas{{{HPA}}}": "10x60",
        },
    ),
    Case(
        "AttendantGpuXidError",
        one_namespace("ticket", pod="attendant-0", gpu="0"),
        8,
        {XID: "0x5 79x60"},
        {XID: "79x60"},
    ),
)

CASES = (*REQUESTS, *CLIENTS, *SERVICE, *CLUSTER)
