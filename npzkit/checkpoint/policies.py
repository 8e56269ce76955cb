"""Which steps to keep: the newest, every n-th, the best ones.

Owns the policies and how they are joined. Each returns the steps to keep. When they
are asked, and what is never removed, is `npzkit.checkpoint.retention`'s.
"""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

Mode = Literal["min", "max"]
MetricsOf = Callable[[int], Mapping[str, Any]]


class Policy(abc.ABC):
    """A rule that says which steps to keep. The operator *or* joins several."""

    @abc.abstractmethod
    def kept(self, steps: Sequence[int], metrics_of: MetricsOf) -> set[int]:
        """Return the steps to keep.

        Parameters
        ----------
        steps : sequence of int
            Ascending.
        metrics_of : callable
            Returns the metrics of a step. It opens the step's file.
        """

    @property
    def metric_names(self) -> frozenset[str]:
        """The metrics by which steps are ranked; none by default."""
        return frozenset()

    @property
    def _rules(self) -> tuple[Policy, ...]:
        """The policies that were joined."""
        return (self,)

    def __or__(self, other: Policy) -> Policy:
        if not isinstance(other, Policy):
            return NotImplemented
        return _Joined(*self._rules, *other._rules)


class _Joined(Policy):
    """Steps that one of several policies keeps."""

    def __init__(self, *rules: Policy) -> None:
        self._joined = rules

    def kept(self, steps: Sequence[int], metrics_of: MetricsOf) -> set[int]:
        return set().union(*(rule.kept(steps, metrics_of) for rule in self._rules))

    @property
    def metric_names(self) -> frozenset[str]:
        return frozenset().union(*(rule.metric_names for rule in self._rules))

    @property
    def _rules(self) -> tuple[Policy, ...]:
        return self._joined

    def __repr__(self) -> str:
        return " | ".join(map(repr, self._rules))


class latest(Policy):  # noqa: N801 - it is used like a function
    """Keep the `n` newest steps: those with the highest numbers.

    Examples
    --------
    >>> latest(2).kept([10, 20, 30], lambda step: {})
    {20, 30}
    """

    def __init__(self, n: int) -> None:
        self.n = check_count(n)

    def kept(self, steps: Sequence[int], metrics_of: MetricsOf) -> set[int]:
        """Return the `n` newest of `steps`; `metrics_of` is not called."""
        return set(steps[-self.n :])

    def __repr__(self) -> str:
        return f"latest({self.n})"


class every(Policy):  # noqa: N801 - as `latest`
    """Keep the steps that are multiples of `n`.

    Examples
    --------
    >>> (every(1000) | latest(1)).kept([900, 1000, 1100], lambda step: {}) == {1000, 1100}
    True
    """

    def __init__(self, n: int) -> None:
        self.n = check_count(n)

    def kept(self, steps: Sequence[int], metrics_of: MetricsOf) -> set[int]:
        """Return the multiples of `n` in `steps`; `metrics_of` is not called."""
        return {step for step in steps if step % self.n == 0}

    def __repr__(self) -> str:
        return f"every({self.n})"


class best(Policy):  # noqa: N801 - as `latest`
    """Keep the `n` steps with the best value of a metric.

    Steps without the metric, or with NaN, are not candidates. Of equal values the
    newer step is better. While no step has the metric, all steps are kept: NaN
    counts as having it.

    Parameters
    ----------
    metric : str
    n : int, default 1
    mode : {"min", "max"}, default "min"
        Whether a lower or a higher value is better.

    Examples
    --------
    >>> losses = {10: 0.5, 20: 0.2, 30: 0.3}
    >>> best("loss", 1).kept([10, 20, 30], lambda step: {"loss": losses[step]})
    {20}
    """

    def __init__(self, metric: str, n: int = 1, mode: Mode = "min") -> None:
        if not isinstance(metric, str):
            raise TypeError(f"metric must be the name of a metric, not {metric!r}")
        self.metric, self.n, self.mode = metric, check_count(n), _check_mode(mode)

    def kept(self, steps: Sequence[int], metrics_of: MetricsOf) -> set[int]:
        """Return the best of `steps` by what `metrics_of` returns; all if none has the metric."""
        if not any(self.metric in metrics_of(step) for step in steps):
            return set(steps)
        return set(ranked(self.metric, steps, metrics_of, self.mode)[: self.n])

    @property
    def metric_names(self) -> frozenset[str]:
        return frozenset({self.metric})

    def __repr__(self) -> str:
        return f"best({self.metric!r}, {self.n}, mode={self.mode!r})"


def ranked(metric: str, steps: Iterable[int], metrics_of: MetricsOf, mode: Mode) -> list[int]:
    """Return the steps that have a metric, the best one first."""
    sign = 1 if _check_mode(mode) == "min" else -1
    values = {step: metrics_of(step).get(metric) for step in steps}
    # Python compares ints above the range of floats exactly; math.isnan does not take them.
    known = {
        step: value
        for step, value in values.items()
        if value is not None and not (isinstance(value, float) and math.isnan(value))
    }
    return sorted(known, key=lambda step: (sign * known[step], -step))


def ranking_mode(metric: str, policy: Policy | None) -> Mode:
    """Return by which mode a policy ranks steps by a metric; "min" unless it is one mode."""
    rules = () if policy is None else policy._rules
    modes = {rule.mode for rule in rules if isinstance(rule, best) and rule.metric == metric}
    return modes.pop() if len(modes) == 1 else "min"


def _check_mode(mode: Mode) -> Mode:
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be 'min' or 'max', not {mode!r}")
    return mode


def check_count(n: Any, name: str = "n") -> int:
    """Return a positive number of steps; raise TypeError or ValueError for anything else."""
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"{name} must be a positive integer, not {n!r}")
    if operator.index(n) < 1:
        raise ValueError(f"{name} must be a positive integer, not {n!r}")
    return operator.index(n)
