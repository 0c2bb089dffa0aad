"""PromQL for the dashboard, filtered by its namespace and pod variables."""

NAMESPACE = '{namespace="$namespace"}'
SELECTED = 'namespace="$namespace", pod=~"$pod"'


def metric(name: str, labels: str = "") -> str:
    return f"{name}{{{SELECTED}{', ' if labels else ''}{labels}}}"


def rate(name: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({metric(name, labels)}[$__rate_interval]))"


def quantile(share: float, name: str, by: str, labels: str = "") -> str:
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', f'{by}, le', labels)})"


def mean(name: str, by: str) -> str:
    """Return the mean of a histogram by labels. It has no value without observations."""
    return f"{rate(f'{name}_sum', by)} / {rate(f'{name}_count', by)}"


def largest(name: str, labels: str) -> str:
    """Return the maximum per pod."""
    return f"max by (pod) ({metric(name, labels)})"
