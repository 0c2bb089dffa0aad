"""Rows about replicas: queue and batches, processes, GPUs."""

from deploy.components.monitoring.dashboard.grafana import Panel, Query, Row
from deploy.components.monitoring.dashboard.queries import largest, mean, metric, quantile, rate

QUEUE = Row(
    "Queue, batches and stages",
    [
        Panel(
            "Tokens per second",
            "Tokens processed by the model, not counting padding, and truncated inputs, both per second.",
            "short",
            [
                Query(rate("attendant_tokens_total", "namespace"), "tokens"),
                Query(rate("attendant_truncated_inputs_total", "namespace"), "truncated inputs"),
            ],
        ),
        Panel(
            "Queued tokens",
            "Tokens in the queue by lane.",
            "short",
            [Query(f"sum by (lane) ({metric('attendant_queue_tokens')})", "{{lane}}")],
        ),
        Panel(
            "Queued inputs",
            "Inputs in the queue by lane.",
            "short",
            [Query(f"sum by (lane) ({metric('attendant_queue_size')})", "{{lane}}")],
        ),
        Panel(
            "Queue utilization",
            "Estimated wait of a small request divided by the limit, in the fullest replica. At 1, requests are "
            "rejected. The autoscaler targets the mean.",
            "percentunit",
            [Query(f"max by (lane) ({metric('attendant_queue_utilization')})", "{{lane}}")],
        ),
        Panel(
            "Queue time, p99",
            "Time that inputs spend waiting for a batch.",
            "s",
            [Query(quantile(0.99, "attendant_stage_duration_seconds", "lane", 'stage="queue"'), "{{lane}}")],
        ),
        Panel(
            "Stage duration, p99",
            "Tokenization and postprocessing per request, queue per input, inference per batch.",
            "s",
            [Query(quantile(0.99, "attendant_stage_duration_seconds", "stage, lane"), "{{stage}} {{lane}}")],
        ),
        Panel(
            "Batch fill",
            "Mean inputs and tokens per batch.",
            "short",
            [
                Query(mean("attendant_batch_size", "lane"), "inputs {{lane}}"),
                Query(mean("attendant_batch_tokens", "lane"), "tokens {{lane}}"),
            ],
        ),
        Panel(
            "Padding",
            "Mean share of padding in a batch.",
            "percentunit",
            [Query(mean("attendant_batch_padding_ratio", "lane"), "{{lane}}")],
        ),
        Panel(
            "Threads in inference",
            "Mean number of threads running the model. If it reaches the total number of threads, CPU is the "
            "bottleneck.",
            "short",
            [Query(rate("attendant_inference_thread_seconds_total", "lane"), "{{lane}}")],
        ),
        Panel(
            "Dropped log lines",
            "Log lines per second that were dropped because their reader is too slow.",
            "ops",
            [Query(rate("attendant_log_lines_dropped_total", "pod"), "{{pod}}")],
        ),
        Panel(
            "Inference errors",
            "Failed batches, retried parts of failed batches, and inputs with NaN or infinity, per second.",
            "ops",
            [
                Query(rate("attendant_inference_errors_total", "lane"), "failed batches {{lane}}"),
                Query(rate("attendant_batch_retries_total", "lane"), "repeated parts {{lane}}"),
                Query(rate("attendant_nonfinite_outputs_total", "lane"), "non-finite inputs {{lane}}"),
            ],
        ),
    ],
)

REPLICAS = Row(
    "Replicas",
    [
        Panel(
            "Tokens per second by replica",
            "If the load is balanced, replicas with equal resources have equal lines.",
            "short",
            [Query(rate("attendant_tokens_total", "pod"), "{{pod}}")],
        ),
        Panel(
            "Ready and draining replicas",
            "A replica that is neither is still loading the model, or its backend has failed.",
            "short",
            [
                Query(f"sum ({metric('attendant_ready')})", "ready"),
                Query(f"sum ({metric('attendant_draining')})", "draining"),
                Query(f"count ({metric('attendant_ready')})", "all"),
            ],
        ),
        Panel(
            "Restarts",
            "Container restarts. Source: kube-state-metrics.",
            "short",
            [Query(f"sum by (pod) ({metric('kube_pod_container_status_restarts_total')})", "{{pod}}")],
        ),
        Panel(
            "Memory",
            "Resident memory of the process, the part reserved for responses, and working set and limit of the "
            "container. The kernel kills a container at its limit. Sources of the last two: cAdvisor and "
            "kube-state-metrics.",
            "bytes",
            [
                Query(metric("process_resident_memory_bytes"), "resident {{pod}}"),
                Query(metric("attendant_pending_response_bytes"), "responses {{pod}}"),
                Query(largest("container_memory_working_set_bytes", 'container!=""'), "working set {{pod}}"),
                Query(largest("kube_pod_container_resource_limits", 'resource="memory"'), "limit {{pod}}"),
            ],
        ),
        Panel(
            "Event loop lag, p99",
            "Delay of a periodic callback. It delays every request and probe of the replica by the same amount.",
            "s",
            [Query(quantile(0.99, "attendant_event_loop_lag_seconds", "pod"), "{{pod}}")],
        ),
        Panel(
            "CPU",
            "CPU seconds per second, per process.",
            "short",
            [Query(rate("process_cpu_seconds_total", "pod"), "{{pod}}")],
        ),
        Panel(
            "Throttled periods",
            "Share of CPU periods in which the container hit its limit. Source: cAdvisor.",
            "percentunit",
            [
                Query(
                    f"{rate('container_cpu_cfs_throttled_periods_total', 'pod')} / "
                    f"{rate('container_cpu_cfs_periods_total', 'pod')}",
                    "{{pod}}",
                )
            ],
        ),
        Panel(
            "Models",
            "Served artifacts, precisions and backends with the number of pods. If a model has more than one line, "
            "embeddings of the same text depend on the replica.",
            "none",
            [
                Query(
                    f"count by (model, digest, precision, provider) ({metric('attendant_model_info')})",
                    "",
                    instant=True,
                )
            ],
            type="table",
            width=12,
        ),
        Panel(
            "Certificates",
            "Time until the first certificate expires. At 0, new connections fail.",
            "s",
            [
                Query(
                    f"min by (certificate) ({metric('attendant_tls_certificate_expiry_timestamp_seconds')}) - time()",
                    "{{certificate}}",
                )
            ],
        ),
        Panel(
            "Reloads",
            "Reloads of changed keys, TLS files and models in an hour. After an error, the previous ones stay in use.",
            "none",
            [
                Query(
                    f"sum by (pod, subject, result) (increase({metric('attendant_reloads_total')}[1h]))",
                    "{{pod}} {{subject}} {{result}}",
                )
            ],
        ),
        Panel(
            "Failed TLS handshakes",
            "Failed TLS handshakes of REST and the admin port by reason. The log names the errors of OpenSSL.",
            "reqps",
            [Query(rate("attendant_tls_handshake_failures_total", "port, reason"), "{{port}} {{reason}}")],
        ),
        Panel(
            "Server versions",
            "Number of pods per server version.",
            "none",
            [Query(f"count by (version) ({metric('attendant_build_info')})", "{{version}}", instant=True)],
            type="stat",
            width=4,
        ),
    ],
)


def device(name: str, title: str, description: str, unit: str) -> Panel:
    """Return a panel with one DCGM exporter metric."""
    return Panel(title, description, unit, [Query(metric(name), "{{pod}} GPU {{gpu}}")])


GPU = Row(
    "GPU (needs the DCGM exporter)",
    [
        device("DCGM_FI_DEV_GPU_UTIL", "Utilization", "Share of time with at least one kernel running.", "percent"),
        device(
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            "Tensor cores",
            "Share of cycles in which tensor cores are active. It shows how well batches are filled.",
            "percentunit",
        ),
        device("DCGM_FI_DEV_FB_USED", "GPU memory", "GPU memory in use.", "decmbytes"),
        device("DCGM_FI_DEV_GPU_TEMP", "Temperature", "A hot GPU lowers its clock.", "celsius"),
        device("DCGM_FI_DEV_XID_ERRORS", "Last XID error", "Code of the last driver error; 0 means none.", "none"),
    ],
    collapsed=True,
)
