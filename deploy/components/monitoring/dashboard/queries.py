"""PromQL of the dashboard, for the namespace and the pods that its variables select."""

NAMESPACE = '{namespace="$namespace"}'
SELECTED = 'namespace="$namespace", pod=~"$pod"'


def metric(name: str, labels: str = "") -> str:
    """Return the series of the selected pods."""
    return f"{name}{{{SELECTED}{', ' if labels else ''}{labels}}}"


def rate(name: str, by: str, labels: str = "") -> str:
    """Return the rate of a counter, summed by labels."""
    return f"sum by ({by}) (rate({metric(name, labels)}[$__rate_interval]))"


def quantile(share: float, name: str, by: str, labels: str = "") -> str:
    """Return a quantile of a histogram by labels."""
    return f"histogram_quantile({share}, {rate(f'{name}_bucket', f'{by}, le', labels)})"


def mean(name: str, by: str) -> str:
    """Return the mean of a histogram by labels; none without observations."""
    return f"{rate(f'{name}_sum', by)} / {rate(f'{name}_count', by)}"


def largest(name: str, labels: str) -> str:
    """Return the largest value of each pod."""
    return f"max by (pod) ({metric(name, labels)})"
