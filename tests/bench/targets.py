"""Bars: what was wanted, what was found, and by how much the one passes or falls short of the other."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Verdict:
    """One bar. `found` is None where it was not measured; then `unit` says why."""

    bar: str
    what: str
    found: float | None
    wanted: float = 0.0
    sense: Literal[">=", "<="] = "<="
    unit: str = ""

    @property
    def reached(self) -> bool | None:
        """None where it was not measured. What is not a number reaches nothing."""
        if self.found is None:
            return None
        return self.found >= self.wanted if self.sense == ">=" else self.found <= self.wanted

    def describe(self) -> str:
        """As `pass  C2  P8: 0.87 (>= 0.75 of the ceiling, by 16 %)`."""
        name = f"{self.bar:<3} {self.what}"
        if self.found is None:
            return f"--     {name}: not measured, {self.unit}"
        known = self.wanted and math.isfinite(self.found)
        margin = f", by {abs(self.found - self.wanted) / abs(self.wanted):.0%}" if known else ""
        word = "pass " if self.reached else "SHORT"
        return f"{word}  {name}: {self.found:.3g} ({self.sense} {self.wanted:g} {self.unit}".rstrip() + f"{margin})"


def at_least(bar: str, what: str, found: float, wanted: float, unit: str = "") -> Verdict:
    """A bar to reach from below."""
    return Verdict(bar, what, found, wanted, ">=", unit)


def at_most(bar: str, what: str, found: float, wanted: float, unit: str = "") -> Verdict:
    """A bar to stay under."""
    return Verdict(bar, what, found, wanted, "<=", unit)


def unmeasured(bar: str, what: str, reason: str) -> Verdict:
    """A bar that this run says nothing of."""
    return Verdict(bar, what, None, unit=reason)


def all_reached(verdicts: Iterable[Verdict]) -> bool:
    """Whether none falls short; those that were not measured do not count."""
    return all(verdict.reached is not False for verdict in verdicts)
