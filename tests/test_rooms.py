"""Invariant: data walks through the rooms in one direction: a room imports from those above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stochbatch

ROOT = Path(stochbatch.__file__).parent
ABOVE: dict[str, set[str]] = {
    "optim": set(),
    "nets": {"optim"},
    "data": {"optim"},
    "training": {"optim", "nets", "data"},
    "studies": {"optim", "nets", "data", "training"},
    "report": {"optim", "nets", "data", "training", "studies"},
    "cli": {"optim", "nets", "data", "training", "studies", "report"},
}
ANYWHERE = {"", "__version__", "registry", "checks", "cores", "plugins", "files", "optional"}
"""The package itself, and modules that belong to no room."""


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and room of every import of the package, also of those within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "stochbatch":
            names = [f"stochbatch.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "stochbatch":
                yield node.lineno, rest.split(".")[0]


def test_every_folder_is_a_room() -> None:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert folders == ABOVE.keys()


@pytest.mark.parametrize("room", ABOVE)
def test_a_room_imports_from_rooms_above_it_alone(room: str) -> None:
    allowed = {room, *ABOVE[room], *ANYWHERE}
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, name in imported(path)
        if name not in allowed
    ]
    assert found == []


def test_the_rooms_do_import_each_other() -> None:
    """Without this the test above might look at nothing."""
    assert {name for path in (ROOT / "training").glob("*.py") for _, name in imported(path)} >= {
        "optim",
        "nets",
        "data",
    }


def test_a_report_knows_results_and_no_engines() -> None:
    code = "import sys, stochbatch.report; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    engines = ("engine", "local_engine", "ray_engine", "progress")
    loaded = set(done.stdout.split())
    assert "stochbatch.studies.results" in loaded
    assert not loaded & {f"stochbatch.studies.{name}" for name in engines}
    assert "matplotlib" not in loaded


FLOORS = (
    {"coins", "kinds", "shards"},
    {"pieces", "memory"},
    {"probability"},
    {"slots"},
    {"update", "optimizer", "schedules"},
    {"layers"},
    {"plan"},
    {"kernels.fallback"},
    {"kernels.build", "kernels.eager", "kernels.triton_step"},
    {"kernels.gpu", "kernels.native"},
    {"kernels"},
    {"layer_report"},
    {"sbs"},
    {"masked", "article", "baselines"},
)
"""Modules of ``optim``: each imports only from floors above it."""


def floor_of(name: str) -> int:
    for number, floor in enumerate(FLOORS):
        if name in floor or name.split(".")[0] in floor - {"kernels"}:
            return number
    raise AssertionError(f"optim.{name} is on no floor")


def test_within_optim_imports_go_one_way() -> None:
    folder, wrong = ROOT / "optim", []
    for path in sorted(folder.rglob("*.py")):
        name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        if name == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            names = [node.module]
            if node.module in ("stochbatch.optim", "stochbatch.optim.kernels"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for module in names:
                target = module.removeprefix("stochbatch.optim.")
                if target != module and floor_of(target) >= floor_of(name):
                    wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_no_two_modules_have_one_name() -> None:
    names = [path.stem for path in ROOT.rglob("*.py") if not path.stem.startswith("__")]
    assert sorted(names) == sorted(set(names))


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Of imports at the top of a module; those within functions are there to break a cycle."""
    imports: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(("stochbatch", *path.relative_to(ROOT).with_suffix("").parts))
        body = ast.parse(path.read_text(encoding="utf-8")).body
        found = imports.setdefault(name.removesuffix(".__init__"), set())
        for node in body:
            if isinstance(node, ast.ImportFrom) and node.module:
                folder = ROOT.parent.joinpath(*node.module.split("."))
                for alias in node.names:
                    inner = folder / alias.name
                    is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                    found.add(f"{node.module}.{alias.name}" if is_module else node.module)
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    left = {name: found & imports.keys() for name, found in imports.items()}
    while free := {name for name, found in left.items() if not found & left.keys() - {name}}:
        left = {name: found for name, found in left.items() if name not in free}
    assert left == {}
