"""Feed npzkit mutated files, and hold what it does against the oracle.

    python tests/fuzz/fuzz.py npy --runs 1000000
    python tests/fuzz/fuzz.py archive --seconds 600 --seed 7 --keep-going
    python tests/fuzz/fuzz.py append --engine atheris --seconds 600
    python tests/fuzz/fuzz.py append --replay fuzz-found/append-1234abcd

The loop, which is the default, mutates what gave an outcome that was not seen
before; atheris, where it is installed, what takes a branch that was not taken
before. Both stop at the first violation, unless told to keep going, and write
its input to a file.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
import importlib
import os
import pkgutil
import random
import re
import signal
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

MEMORY = 1 << 30
"""Bytes of address space that the process may take beyond what it has."""
HANG_SECONDS = 60
TOLD_SECONDS = 30
POOL_SIZE = 3000
INPUT_SIZE = 1 << 16
"""Bytes of the largest input: mutations double members."""
PARENT_SIZE = 1 << 14
"""Bytes of the largest input that is mutated further."""


class Tally:
    """Runs inputs through the oracle, counts what comes of them, keeps those that violate.

    Parameters
    ----------
    target : {"npy", "archive", "append", "stream", "end", "http", "zstd"}
    runs, seconds : float
        When it is done.
    folder : Path or None
        Where violations go, one of each kind; None raises them.
    keep_going : bool
    """

    def __init__(
        self,
        target: str,
        runs: float,
        seconds: float = float("inf"),
        folder: Path | None = None,
        *,
        keep_going: bool = False,
    ) -> None:
        self.target = target
        self.count = 0
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.kinds: set[str] = set()
        self._runs, self._seconds = runs, seconds
        self._folder, self._keep_going = folder, keep_going
        self._begin = self._told = time.monotonic()

    def is_done(self) -> bool:
        return (
            self.count >= self._runs
            or time.monotonic() - self._begin > self._seconds
            or bool(self.kinds and not self._keep_going)
        )

    def run(self, data: bytes) -> frozenset[str]:
        """Return what came of an input."""
        import oracle

        try:
            labels = oracle.check(self.target, data)
        except Exception as error:
            if self._folder is None:
                raise
            # The oracle's own failures are to be looked at, too.
            is_violation = isinstance(error, oracle.Violation)
            text = str(error) if is_violation else traceback.format_exc(limit=-3)
            self._keep(data, text, self._folder)
            labels = ["VIOLATION"]
        self.count += 1
        self.outcomes.update(labels)
        if self._folder is not None and time.monotonic() - self._told > TOLD_SECONDS:
            self.tell()
        return frozenset(labels)

    def _keep(self, data: bytes, text: str, folder: Path) -> None:
        kind = re.sub(r"'[^']*'|\"[^\"]*\"|[0-9]+|b'.*|array of.*?\)", "*", text)[:120]
        if kind not in self.kinds:
            self.kinds.add(kind)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{self.target}-{hashlib.sha256(data).hexdigest()[:8]}"
            path.write_bytes(data)
            print(f"VIOLATION, {len(data)} bytes in {path}:\n{text}\n", flush=True)

    def tell(self) -> None:
        self._told = time.monotonic()
        seconds = max(self._told - self._begin, 1e-9)
        print(
            f"{self.target}: {self.count} inputs in {seconds:.0f} s, "
            f"{self.count / seconds:.0f} a second, {len(self.kinds)} kinds of violation",
            flush=True,
        )

    def tell_outcomes(self) -> None:
        self.tell()
        for label, count in self.outcomes.most_common():
            print(f"{count:>10}  {label}")


def _watch(tally: Tally) -> None:
    """End an input that takes a minute or two, where the system has timers."""
    last = -1

    def look(*_: object) -> None:
        nonlocal last
        if tally.count == last:
            import oracle

            raise oracle.Violation(f"still at it after {HANG_SECONDS} seconds")
        last = tally.count

    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS, HANG_SECONDS)


def _limit_memory() -> None:
    """Make a MemoryError, which is no NpzkitError, of what would be swapped."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


def mutate(target: str, data: bytes, rng: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    from mutate_bytes import mutate_bytes
    from mutate_end import mutate_end
    from mutate_http import mutate_http
    from mutate_npy import mutate_npy
    from mutate_zip import mutate_zip

    mutations = {
        "npy": mutate_npy, "end": mutate_end, "http": mutate_http, "zstd": mutate_bytes,
    }  # fmt: skip
    change = mutations.get(target, mutate_zip)
    return change(data, rng, seeds)[:INPUT_SIZE]


def loop(tally: Tally, seed: int) -> None:
    """Mutate seeds, and inputs whose outcome was new: the same ones for the same seed."""
    import oracle
    from seeds import seeds_of

    rng = random.Random(f"{tally.target} {seed}")
    seeds = seeds_of(tally.target)
    pool = list(seeds)
    seen: set[frozenset[str]] = set()
    with oracle.recorded_warnings():
        while not tally.is_done():
            parent = rng.choice(seeds if rng.random() < 0.5 else pool)
            data = mutate(tally.target, parent, rng, seeds)
            found = tally.run(data)
            if found not in seen and len(data) < PARENT_SIZE:
                seen.add(found)
                if len(pool) < POOL_SIZE:
                    pool.append(data)


def guided(tally: Tally, seed: int, folder: Path) -> None:
    """Let libFuzzer choose what to mutate, by the branches that an input takes in npzkit."""
    import atheris

    with atheris.instrument_imports(include=["npzkit"]):
        import npzkit

        for module in pkgutil.walk_packages(npzkit.__path__, "npzkit."):
            if not module.name.startswith(("npzkit.__main__", "npzkit.cli")):
                importlib.import_module(module.name)
    # They import npzkit, which has to be instrumented by then.
    import oracle
    from seeds import seeds_of

    seeds = seeds_of(tally.target)
    corpus = folder / f"corpus-{tally.target}"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in seeds:
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def mutated(data: bytes, max_size: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.15:
            return atheris.Mutate(data, max_size)
        return mutate(tally.target, data, rng, seeds)[:max_size]

    def one(data: bytes) -> None:
        tally.run(data)
        if tally.is_done():
            tally.tell_outcomes()
            # libFuzzer returns to nobody.
            sys.stdout.flush()
            os._exit(1 if tally.kinds else 0)

    options = [f"-seed={seed + 1}", f"-max_len={INPUT_SIZE}", "-rss_limit_mb=0", "-verbosity=0"]
    atheris.Setup([sys.argv[0], str(corpus), *options], one, custom_mutator=mutated)
    with oracle.recorded_warnings():
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz npzkit against its oracle.")
    parser.add_argument(
        "target", choices=("npy", "archive", "append", "stream", "end", "http", "zstd")
    )
    parser.add_argument("--runs", type=int, default=float("inf"), help="inputs in all")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--engine", choices=("loop", "atheris"), default="loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("fuzz-found"), help="for violations")
    parser.add_argument("--keep-going", action="store_true", help="one violation of each kind")
    parser.add_argument("--replay", type=Path, help="one input, in every way there is")
    options = parser.parse_args()
    if options.replay:
        import oracle

        with oracle.recorded_warnings():
            print(
                *oracle.check(options.target, options.replay.read_bytes(), thorough=True), sep="\n"
            )
        return
    tally = Tally(
        options.target,
        options.runs,
        options.seconds,
        options.folder,
        keep_going=options.keep_going,
    )
    _limit_memory()
    _watch(tally)
    if options.engine == "atheris":
        guided(tally, options.seed, options.folder)
    with contextlib.suppress(KeyboardInterrupt):
        loop(tally, options.seed)
    tally.tell_outcomes()
    sys.exit(1 if tally.kinds else 0)


if __name__ == "__main__":
    main()
