"""Panels, rows and variables of a Grafana dashboard, in the JSON model of schema version 39."""

import json
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 39
COLUMNS = 24
HEIGHT = 8
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """A PromQL expression and its legend. An instant query returns one value per series."""

    expression: str
    legend: str
    instant: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel with a width in columns; `type` is timeseries, stat or table."""

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    type: str = "timeseries"
    width: int = 8
    stacked: bool = False
    decimals: int | None = None
    thresholds: Sequence[tuple[float | None, str]] = ((None, "green"),)


@dataclass(frozen=True)
class Row:
    """A titled row of panels, which wrap onto the next line if they do not fit."""

    title: str
    panels: Sequence[Panel] = field(default_factory=tuple)
    collapsed: bool = False


def render(title: str, uid: str, description: str, rows: Iterable[Row]) -> str:
    """Return the dashboard as JSON, with variables for the data source, the namespace and the pods."""
    model = {
        "annotations": {"list": []},
        "description": description,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [],
        "panels": list(_lay_out(rows)),
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["attendant"],
        "templating": {"list": _variables()},
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "title": title,
        "uid": uid,
        "version": 1,
    }
    return json.dumps(model, indent=2) + "\n"


def _lay_out(rows: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """Stack the rows and number all rows and panels."""
    identifier = y = 0
    for row in rows:
        identifier += 1
        header = {
            "id": identifier,
            "type": "row",
            "title": row.title,
            "collapsed": row.collapsed,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
            "panels": [],
        }
        y += 1
        x, panels = 0, []
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + HEIGHT
            identifier += 1
            panels.append(_panel(panel, identifier, {"h": HEIGHT, "w": panel.width, "x": x, "y": y}))
            x += panel.width
        y += HEIGHT
        # Grafana nests panels inside a collapsed row, but lists them after an open one.
        if row.collapsed:
            yield header | {"panels": panels}
        else:
            yield header
            yield from panels


def _panel(panel: Panel, identifier: int, position: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "thresholds" if panel.type == "stat" else "palette-classic"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": value, "color": color} for value, color in panel.thresholds],
        },
    }
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.type == "timeseries":
        defaults |= {"min": 0, "custom": _style(panel.stacked)}
    return {
        "id": identifier,
        "type": panel.type,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": position,
        "targets": [
            _target(query, letter) for query, letter in zip(panel.queries, string.ascii_uppercase, strict=False)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.type),
        "transformations": _transformations(panel),
    }


def _target(query: Query, letter: str) -> dict[str, Any]:
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expression,
        "legendFormat": query.legend,
        "instant": query.instant,
        "range": not query.instant,
        "format": "table" if query.instant and not query.legend else "time_series",
    }


def _style(stacked: bool) -> dict[str, Any]:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if stacked else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
    }


def _options(kind: str) -> dict[str, Any]:
    if kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if kind == "stat":
        return {
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "textMode": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }
    return {"showHeader": True, "cellHeight": "sm"}


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    if panel.type != "table":
        return []
    columns = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {"Value": "pods"}}
    return [{"id": "organize", "options": columns}]


def _variables() -> list[dict[str, Any]]:
    return [
        {
            "name": "datasource",
            "label": "Data source",
            "type": "datasource",
            "query": "prometheus",
            "refresh": 1,
            "hide": 0,
            "includeAll": False,
            "multi": False,
            "options": [],
        },
        _label_values("namespace", "Namespace", "label_values(attendant_ready, namespace)", several=False),
        _label_values("pod", "Pod", 'label_values(attendant_ready{namespace="$namespace"}, pod)', several=True),
    ]


def _label_values(name: str, label: str, query: str, *, several: bool) -> dict[str, Any]:
    variable: dict[str, Any] = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "hide": 0,
        "includeAll": several,
        "multi": several,
        "options": [],
    }
    selected = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return variable | ({"allValue": ".*", "current": selected} if several else {})
