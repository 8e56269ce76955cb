"""What `bench` prints and draws: tables for a terminal, the guide's table, the chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from rich.table import Table
from rows import KEYS_OF_FOUR, OTHERS, REAL, ROWS, SIX_KINDS, Aim, Result, Row, mean, ratios
from works import Place, memory_rows

Results = dict[str, list[Result]]
Memory = list[tuple[str, str, str]]


class Suite(NamedTuple):
    """What one benchmark measures: works, peers by a name in prose and a colour, and memory."""

    rows: Mapping[str, Row]
    peers: Mapping[str, tuple[str, str]]
    memory: Callable[[Place], Iterator[tuple[str, str, str]]]
    sizes_of: str = "np.savez_compressed"
    """Whose files the sizes are compared with."""

    @property
    def names(self) -> list[str]:
        return [*self.rows, "memory"]


PEERS = {
    "numpy": ("NumPy", "#4477aa"), "safetensors": ("safetensors", "#ee6677"),
    "h5py": ("h5py", "#228833"), "zarr": ("zarr", "#ccbb44"), "zipfile": ("zipfile", "#66ccee"),
    "bare": ("bare", "#bbbbbb"),
}  # fmt: skip
BENCH = Suite(ROWS, PEERS, memory_rows)


def peers_of(results: list[Result], suite: Suite) -> list[str]:
    return [peer for peer in suite.peers if peer in results[0].seconds]


def works_table(measured: Results, suite: Suite = BENCH) -> Table:
    """Return every work's times, and the peers' ratios to npzkit's."""
    table = Table("work", "npzkit", *suite.peers, title="medians; x = times npzkit's")
    for name, results in measured.items():
        for found in results:
            ours = found.seconds["npzkit"]
            cells = [
                f"{theirs * 1e3:.1f} ms, {theirs / ours:.2f} x"
                if (theirs := found.seconds.get(peer))
                else ""
                for peer in suite.peers
            ]
            size = "" if found.size is None else f", {found.size:.3f} of the size"
            title = suite.rows[name].title
            title += f": {found.title}" if len(results) > 1 else ""
            table.add_row(title + size, f"{ours * 1e3:.1f} ms", *cells)
    return table


def aims_found(measured: Results, suite: Suite = BENCH) -> list[tuple[str, Aim, float, int]]:
    """Return each aim with its row's title, figure and number of works, the furthest behind first."""
    found = [
        (suite.rows[name].title, aim, aim.figure(results, aim.peer), len(results))
        for name, results in measured.items()
        for aim in suite.rows[name].aims
        if not aim.peer or aim.peer not in suite.peers or aim.peer in results[0].seconds
    ]
    return sorted(found, key=lambda entry: min(entry[1].lead(entry[2]), 1))


def aims_table(measured: Results, suite: Suite = BENCH) -> Table:
    """Return what was aimed at and what was reached; rows behind their aim come first."""
    table = Table("work", "npzkit is", "figure", "aim", "", title="aims")
    for title, aim, figure, count in aims_found(measured, suite):
        extreme = "" if "mean" in aim.words or count == 1 else f", the worst of {count}"
        table.add_row(
            title, f"{aim.words} {aim.peer}".strip() + extreme, f"{figure:.3g}",
            f"{'at most' if aim.at_most else 'at least'} {aim.limit:.3g}",
            "" if aim.lead(figure) >= 1 else "behind",
        )  # fmt: skip
    return table


def memory_table(memory: Memory) -> Table:
    table = Table("memory, and moments", "found", "allowed")
    for row in memory:
        table.add_row(*row)
    return table


# -- the guide's table ------------------------------------------------------


def _range(values: list[float], digits: str) -> str:
    """Return the smallest and the largest value, or the only one."""
    low, high = (format(value, digits) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _times(results: list[Result], peer: str) -> str:
    found = ratios(results, peer)
    digits = ".0f" if min(found) >= 100 else ".1f" if min(found) >= 1.2 else ".2f"
    average = f", {mean(results, peer):{digits}} x in the mean" if len(found) > 2 else ""
    return f"{_range(found, digits)} x{average}"


def _milliseconds(results: list[Result]) -> str:
    found = [result.seconds["npzkit"] * 1e3 for result in results]
    return f"{_range(found, '.1f' if min(found) < 100 else '.0f')} ms"


def markdown(measured: Results, memory: Memory, suite: Suite = BENCH) -> Iterator[str]:
    """Yield the lines of the guide's table, and those below it."""
    titles = ["work", "npzkit", *(title for title, _ in suite.peers.values())]
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for name, results in measured.items():
        found = peers_of(results, suite)
        cells = [_times(results, peer) if peer in found else "" for peer in suite.peers]
        line = " | ".join([suite.rows[name].title, _milliseconds(results), *cells])
        yield f"| {line} |".replace("  ", " ")
    yield ""
    for words in (KEYS_OF_FOUR, SIX_KINDS, REAL, OTHERS):
        for name in [name for name in measured if words in suite.rows[name].title][-1:]:
            titles = ", ".join(found.title for found in measured[name])
            yield f"- {words[0].upper()}{words[1:]}: {titles}."
    sizes = [found.size for results in measured.values() for found in results if found.size]
    if sizes:
        size = _range(sizes, ".2f")
        yield f"- Compressed files are {size} times as large as those of {suite.sizes_of}."
    for title, most, _ in memory:
        yield f"- {title[0].upper()}{title[1:]}: {most}."


# -- the chart ---------------------------------------------------------------


def draw(measured: Results, path: str, suite: Suite = BENCH) -> None:
    """Draw how many times npzkit's time each peer took in the mean, a group of bars per row."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    rows = [
        (suite.rows[name].title, {peer: mean(results, peer) for peer in peers_of(results, suite)})
        for name, results in measured.items()
        if peers_of(results, suite)
    ]
    count = sum(len(group) for _, group in rows) + len(rows)
    figure, axes = pyplot.subplots(figsize=(9, 0.16 * count + 1.4), layout="constrained")
    middles, place = [], 0.0
    for _, group in rows:
        middles.append(place + (len(group) - 1) / 2)
        for name, ratio in group.items():
            axes.barh(place, ratio - 1, 0.9, left=1, color=suite.peers[name][1])
            is_faster = ratio >= 1
            axes.annotate(
                f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.2f}", (ratio, place),
                (3 if is_faster else -3, 0), textcoords="offset points", va="center_baseline",
                ha="left" if is_faster else "right", fontsize=7,
            )  # fmt: skip
            place += 1
        axes.axhline(place, color="0.85", linewidth=0.5)
        place += 1
    axes.set_yticks(middles, [title for title, _ in rows], fontsize=8)
    axes.set_ylim(-1, place - 1)
    axes.invert_yaxis()
    axes.set_xscale("log")
    shown = [ratio for _, group in rows for ratio in group.values()]
    axes.set_xlim(min(0.5, 0.6 * min(shown)), 1.6 * max(shown))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(lambda value, place: "")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("times npzkit's time (right of the line: npzkit is faster)")
    used = [name for name in suite.peers if any(name in group for _, group in rows)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=suite.peers[name][1]) for name in used]
    figure.legend(handles, used, fontsize=8, ncols=len(used), loc="outside lower center")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)
