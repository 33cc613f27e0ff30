"""Run benchmarks, print their tables and goals, keep the numbers as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch

import stochbatch
from stochbatch.files import write_atomically
from stochbatch.training.result import processor

NAMES = ("step", "iteration", "memory", "epoch", "cost")
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller models")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"unknown benchmark {sorted(unknown)}; there are {', '.join(NAMES)}")
    torch.set_num_threads(arguments.threads)
    machine = {
        "processor": processor(),
        "torch": torch.__version__,
        "stochbatch": stochbatch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    now = datetime.now(timezone.utc)
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{now:%Y%m%dT%H%M%SZ}.json"
    results = []
    for name, threads in _runs(arguments.names or NAMES, arguments.threads):
        torch.set_num_threads(threads)
        result = importlib.import_module(f"benchmarks.{name}").run(arguments.quick)
        result.name, result.threads = name, threads
        results.append(result)
        print(f"\n## {name}, {result.where()}: {result.title}\n\n{result.table()}\n")
        for line in (*result.goals, *result.notes):
            print(line, flush=True)
        # After each one: what was measured is not lost when a later one fails or is stopped.
        kept = [result.as_json() for result in results]
        data = {"machine": machine, "time": now.isoformat(), "results": kept}
        write_atomically(target, partial(_write, json.dumps(data, indent=1).encode()))
    print(f"\n{target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target}")


def _runs(names: Sequence[str], threads: int) -> Iterator[tuple[str, int]]:
    """Yield names and numbers of threads: on a CPU, steps are timed on one thread too."""
    for name in names:
        if name == "step" and threads > 1 and not torch.accelerator.is_available():
            yield name, 1
        yield name, 1 if name == "cost" else threads


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


if __name__ == "__main__":
    main()
