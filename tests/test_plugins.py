"""Invariant: what others add is found by name everywhere, and what it was is written down."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.forked import forked

PAGE = (Path(__file__).parents[1] / "docs" / "optimizers.md").read_text(encoding="utf-8")
(OPTIMIZER,) = re.findall(r"```python\n(# signs_sgd.py\n.*?)```", PAGE, re.DOTALL)
STUDY = """
title = "Signs"
[base]
epochs = 1
share = 0.1
width = 0.25
batch_size = 32
[[axes]]
name = "method"
points = [
    { label = "SGD", method = "sgd" },
    { label = "SignSGD", method = "signs", lr = 0.01, settings = { power = 0.5 } },
]
[[claims]]
axis = "method"
better = "SignSGD"
than = "SGD"
"""


def typed(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call the command in a folder, with variables of the environment."""
    return forked(["stochbatch", *words], folder, {**os.environ, **variables}, timeout=250)


def said(folder: Path, code: str, plugins: str, **variables: str) -> list[str]:
    """Return the lines that a program prints, with these plugins."""
    variables = {**os.environ, "STOCHBATCH_PLUGINS": plugins, **variables}
    done = forked(["python", "-c", code], folder, variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "signs_sgd.py").write_text(OPTIMIZER)
    (tmp_path / "mine.toml").write_text(STUDY)
    return tmp_path


def environments(folder: Path) -> dict[str, dict]:
    found = [json.loads(path.read_text()) for path in folder.glob("runs/*/result.json")]
    return {result["trial"]["method"]: result["environment"] for result in found}


def test_a_file_joins_a_comparison(folder: Path) -> None:
    variables = {"STOCHBATCH_PLUGINS": "signs_sgd.py"}
    options = ("mine.toml", "--trials", "1")
    done = typed(folder, "study", "run", *options, "--workers", "2", "--quiet", **variables)
    assert "2 finished" in done.stdout, done.stderr
    found = environments(folder)
    (label,) = found["signs"]["plugins"]
    assert label.split()[0] == "signs_sgd.py"
    assert len(label.split()[1]) == 12
    assert "plugins" not in found["sgd"]
    reported = typed(folder, "report", *options, "--no-figures", **variables)
    assert reported.returncode == 0, reported.stderr
    assert "SignSGD" in (folder / "reports/mine-paper-part/table.md").read_text()


def test_a_package_is_found_by_its_entry_point(folder: Path) -> None:
    facts = folder / "signs-1.5.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: signs\nVersion: 1.5\n")
    (facts / "entry_points.txt").write_text("[stochbatch]\nsigns = signs_sgd\n")
    words = ("train", "--method", "signs", "--epochs", "1", "--share", "0.1", "--quiet")
    done = typed(folder, *words, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    assert environments(folder)["signs"]["plugins"] == ["signs 1.5"]


def test_a_module_is_listed_with_its_settings_and_unknown_without_it(folder: Path) -> None:
    variables = {"STOCHBATCH_PLUGINS": " signs_sgd ,", "PYTHONPATH": str(folder)}
    listed = typed(folder, "list", "methods", "--settings", **variables).stdout
    assert "The sign of the gradient alone." in listed
    assert ["signs", "power", "1.0"] in [line.split() for line in listed.splitlines()]
    done = typed(folder, "train", "--method", "signs")
    assert done.returncode == 1
    assert "no method is called 'signs'" in done.stderr


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("import nothing_like_this", "broken.py", "ModuleNotFoundError: No module named 'nothing"),
        ("1 / 0", "broken.py", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(0)", "broken.py", "cannot be imported: SystemExit: 0"),
        (
            "from stochbatch.training import METHODS\nMETHODS.add('sgd', 'Mine.', METHODS['sgd'])",
            "broken.py",
            "ValueError: two methods are called 'sgd'",
        ),
        ("", "json.py", "there is a module 'json' already: give the file another name"),
        ("", "none/of/these.py", "STOCHBATCH_PLUGINS has 'none/of/these.py', which cannot be"),
        ("", "nothing_like_this", "'nothing_like_this', which cannot be found: there is no such"),
    ],
)
def test_what_cannot_be_imported_is_one_clear_line(
    text: str, name: str, says: str, folder: Path
) -> None:
    if "/" not in name and name.endswith(".py"):
        (folder / name).write_text(text)
    # json.py in the current folder must not be in the way of the command itself
    done = typed(folder, "list", "methods", STOCHBATCH_PLUGINS=name)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_what_is_there_is_found_without_them(folder: Path) -> None:
    """A broken plugin is in nobody's way who does not ask for what it may have."""
    words = ("train", "--epochs", "1", "--share", "0.1", "--quiet")
    assert typed(folder, *words, STOCHBATCH_PLUGINS="broken.py").returncode == 0
    (folder / "cifar-10-binary.tar.gz").write_bytes(b"loose, and not the published file")
    loading = """
from stochbatch import data
try:
    data.load("cifar10", ".")
except data.HashError:
    print("found, and refused")
"""
    assert said(folder, loading, "broken.py") == ["found, and refused"]


@pytest.mark.parametrize("name", ["broken.py", "bad.parts"])
def test_a_plugin_that_fails_fails_again(name: str, folder: Path) -> None:
    for file in ("broken.py", "bad/__init__.py"):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("1 / 0")
    code = """
from stochbatch.training import METHODS
for _ in range(2):
    try:
        METHODS["signs"]
    except ValueError as error:
        print(type(error).__name__, error)
"""
    first, second = said(folder, code, name)
    assert first == second
    assert first.startswith("PluginError")
    assert "ZeroDivisionError" in first


PACKAGE = {
    "pk/__init__.py": "from pk import parts",
    "pk/parts.py": OPTIMIZER + "\nimport stochbatch.nets, stochbatch.data, stochbatch.studies\n",
}


def test_what_came_with_it_is_its_own_and_nothing_else(folder: Path) -> None:
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    code = """
from stochbatch.training import METHODS
print(METHODS.origin("signs"))
from stochbatch.nets import NETWORKS
from stochbatch.data import DATASETS
from stochbatch.studies import SCALES, STUDIES
print(NETWORKS.origin("vgg11"), DATASETS.origin("digits"), METHODS.origin("sgd"))
print(STUDIES.origin("comparison"), SCALES.origin("demo"))
"""
    origins = []
    for _ in range(2):
        first, *others = said(folder, code, "pk.parts")
        assert " ".join(others).split() == ["None"] * 5
        origins.append(first.split())
        with (folder / "pk/parts.py").open("a") as file:
            file.write("# another version")
    assert [name for name, _ in origins] == ["pk.parts"] * 2
    assert origins[0][1] != origins[1][1]
    code = "import signs_sgd\nfrom stochbatch.training import METHODS\nprint('signs' in [*METHODS])"
    assert said(folder, code, "signs_sgd.py") == ["True"]  # imported already, in nobody's way


SCHEDULES = """
from torch.optim import lr_scheduler as s
from stochbatch.training import SCHEDULES

@SCHEDULES.register("warm", "Up for two epochs, then down.")
def warm(optimizer, epochs, *, start=0.1):
    up = s.LinearLR(optimizer, start, total_iters=2)
    return s.SequentialLR(optimizer, [up, s.CosineAnnealingLR(optimizer, epochs)], [2])

@SCHEDULES.register("restarts", "Down, again and again.")
def restarts(optimizer, epochs, *, end_lr=None):
    return s.CosineAnnealingWarmRestarts(optimizer, 2, 2, eta_min=end_lr or 0.0)

@SCHEDULES.register("chained", "Two schedules, multiplied; it counts no epochs of its own.")
def chained(optimizer, epochs):
    return s.ChainedScheduler([s.LinearLR(optimizer), s.ExponentialLR(optimizer, 0.9)])
"""


def test_schedules_of_others_are_resumed_where_they_were(folder: Path) -> None:
    (folder / "rates.py").write_text(SCHEDULES)
    code = """
import os, signal
from stochbatch.training import Interrupted, Observer, Trial, run

class Stop(Observer):
    def on_epoch(self, metrics):
        if metrics["epoch"] in (1, 3):
            os.kill(os.getpid(), signal.SIGTERM)

for schedule in ("warm", "restarts", "chained"):
    trial = Trial(epochs=5, share=0.1, batch_size=32, width=0.25, schedule=schedule)
    whole = run(trial, "whole")
    stops = 0
    for _ in range(2):
        try:
            run(trial, "parts", observers=[Stop()])
        except Interrupted:
            stops += 1
    parts = run(trial, "parts")
    plugins = [name.split()[0] for name in parts.environment["plugins"]]
    print(schedule, stops, whole.weights_sha256 == parts.weights_sha256, *plugins)
"""
    assert said(folder, code, "rates.py") == [
        f"{schedule} 2 True rates.py" for schedule in ("warm", "restarts", "chained")
    ]


def test_a_name_of_the_main_program_alone_is_a_clear_failure(folder: Path) -> None:
    text = """
if __name__ == "__main__":
    exec(open("signs_sgd.py").read())
    from stochbatch.studies import SCALES, Study, collect
    from stochbatch.studies.local_engine import run_trials
    results = collect(Study.from_file("mine.toml"), SCALES["paper"], "runs", repetitions=1)
    for trial, status, text in run_trials(results.missing, "runs", workers=1):
        print(status, text)
"""
    (folder / "main.py").write_text(text)
    done = forked(["python", folder / "main.py"], folder, timeout=200)
    lines = sorted(line.split()[0] for line in done.stdout.splitlines())
    assert lines == ["failed", "finished"], done.stderr
    assert "no method is called 'signs'" in done.stdout
    (error,) = folder.glob("runs/*/error.json")
    assert "no method is called 'signs'" in error.read_text()
