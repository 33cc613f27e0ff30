"""Invariant: every snippet and every command of the README works."""

import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from benchmarks import __main__ as bench
from benchmarks import cost, page, step
from benchmarks.timing import in_turn
from torch import nn

from stochbatch.studies.estimate import Speed
from tests.cli.command import call
from tests.engine_here import trains_here  # noqa: F401
from tests.forked import forked

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
(DIFF,) = re.findall(r"```diff\n(.*?)```", README, re.DOTALL)


def commands_in(page: str) -> list[str]:
    """Return the commands of a page's blocks of shell lines."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]


COMMANDS = commands_in(README)
OF_SEVERAL = [line for line in COMMANDS if line.startswith("torchrun") or "ray" in line]
OF_STUDIES = [
    line
    for line in COMMANDS
    if line.startswith(("stochbatch study", "stochbatch rep")) and line not in OF_SEVERAL
]


@pytest.fixture
def in_a_folder(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trains_here: None,  # noqa: F811
) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMPARISON = "stochbatch compare sgd sbs adamw --dataset my_photos/"
MEASURE = """
x, y = data.load("digits", split="test")
print("accuracy", 100 * (model(x.flatten(1) / 255).argmax(1) == y).double().mean().item())
"""


@pytest.mark.parametrize("version", ["SGD", "SBS"])
def test_both_versions_of_the_ten_lines_learn_the_digits(version: str) -> None:
    dropped = "+" if version == "SGD" else "-"
    lines = [line[1:] for line in DIFF.splitlines() if line[0] != dropped]
    assert len(lines) == (9 if version == "SGD" else 10)
    program = "\n".join(["import torch", "torch.manual_seed(0)", *lines])
    result = forked(["python", "-c", program + MEASURE])
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.split()[-1]) > 95
    assert ("probability" in result.stdout) == (version == "SBS")


def test_every_command_is_one_that_is_tested_here() -> None:
    known = {"make demo", "make test", COMPARISON, *OF_STUDIES, *OF_SEVERAL}
    assert set(COMMANDS) == known


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 900


def typed(line: str, folder: Path) -> str:
    """Return what a command prints that is typed in a folder."""
    words = shlex.split(line)
    if words[0] == "stochbatch":
        result = forked(words, folder, timeout=250)
    else:
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        result = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=250
        )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_commands_of_the_first_tutorial_do_what_is_said_of_them(tmp_path: Path) -> None:
    """In their order, in one folder, as a reader would type them."""
    os.symlink(ROOT / "examples", tmp_path / "examples")
    lines = [line for line in commands_in(TUTORIAL) if line.startswith("stochbatch ")]
    trained, shown, predicted = (typed(line, tmp_path) for line in lines)
    assert "test accuracy 9" in trained
    assert "classifier.weight" in shown
    assert list(tmp_path.glob("runs/a336*/curve.png"))
    assert re.search(r"digit.png +7 ", predicted)


def here(line: str) -> str:
    """Return what a command prints that is called in this process and folder."""
    result = call(*shlex.split(line)[1:])
    assert result.code == 0, result.err
    return result.out


def test_a_folder_of_pictures_is_compared_on(in_a_folder: Path) -> None:
    """With two made-up classes and the smallest budget, for time's sake."""
    images = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("dark", "light")):
        folder = in_a_folder / "my_photos" / name
        folder.mkdir(parents=True)
        for i in range(24):
            picture = images.new("RGB", (32, 32), (150 * number + i, 100 * number, 2 * i))
            picture.save(folder / f"{i}.png")
    small = " --network vgg_tiny --budget 1 --seeds 2 --epochs 1 --batch-size 8"
    printed = here(COMPARISON + small + " --data-root data --quiet")
    assert printed.count("At the settings chosen (1 tried, on validation images; ") == 2
    assert re.search("^page: reports/", printed, re.MULTILINE)


def test_the_commands_of_studies_do_what_is_said_of_them(in_a_folder: Path) -> None:
    """Narrowed to one cell of each of two methods, for time's sake."""
    narrow = " --only 'batch size=128' --only method=SGD,SBS --trials 1"
    assert len(OF_STUDIES) == 2
    for line in OF_STUDIES:
        here(line + narrow)
    assert (in_a_folder / "reports" / "comparison-demo-part" / "index.html").exists()


@pytest.mark.distributed
def test_the_commands_of_several_processes_do_what_is_said_of_them(tmp_path: Path) -> None:
    """The study narrowed to one cell, for time's sake."""
    training, study = OF_SEVERAL
    narrow = " --only 'batch size=128' --only method=SGD --trials 1"
    assert "test accuracy" in typed(training, tmp_path)
    assert "1 finished" in typed(study + narrow, tmp_path)
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 2


def commands_of(target: str) -> list[str]:
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return plan.stdout.splitlines()


def test_make_demo_ends_with_the_path_of_a_page(in_a_folder: Path) -> None:
    """Its own command, with trainings of one epoch and two seeds for time's sake."""
    line = " ".join(" ".join(commands_of("demo")).split("stochbatch ")[-1].split())
    line = line.replace("\\ ", "")
    printed = here(f"stochbatch {line} --epochs 1 --seeds 2")
    assert "SGD, SBS and SBS mean field on digits" in printed
    assert printed.count("At the settings chosen (3 tried, on validation images; ") == 2
    page = re.search("^page: (.*)$", printed, re.MULTILINE)
    text = (in_a_folder / page[1]).read_text(encoding="utf-8")
    assert "At the settings chosen (3 tried" in text
    for method in ("SGD", "SBS", "SBS mean field"):
        assert f'<th scope="row">{method}</th>' in text


def test_the_example_of_a_comparison_by_hand_runs(tmp_path: Path) -> None:
    script = ROOT / "examples" / "digits.py"
    result = forked(["python", script, "--epochs", "2", "--seeds", "2"], tmp_path)
    assert result.returncode == 0, result.stderr
    for method in ("SGD", "SBS"):
        assert re.search(rf"{method} +│ 2 +│ \d+\.\d+ %", result.stdout)
    assert (tmp_path / "runs" / "digits.png").exists()


def test_the_example_of_algorithm_1_shows_a_gap_that_falls_with_the_square_of_the_rate(
    tmp_path: Path,
) -> None:
    result = forked(["python", ROOT / "examples" / "algorithm1.py"], tmp_path)
    assert result.returncode == 0, result.stderr
    rows = [[float(number) for number in line.split()] for line in result.stdout.splitlines()[1:-1]]
    assert len(rows) == 5
    for before, after in pairwise(rows):
        assert 3.3 < before[1] / after[1] < 4.2
    assert (tmp_path / "runs" / "algorithm1.png").exists()


def test_make_bench_runs_benchmarks_that_are_there() -> None:
    assert commands_of("bench")[-1].endswith("python -m benchmarks")
    for name in bench.NAMES:
        assert callable(importlib.import_module(f"benchmarks.{name}").run)


def test_the_benchmark_of_steps_measures_every_optimizer_against_adam(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "PARAMETERS", {"tiny": lambda: nn.Linear(3, 2)})
    result = step.run(quick=True)
    assert [row[1] for row in result.rows] == list(step.OPTIMIZERS)
    assert result.rows[0][3] == 1.0
    assert len(result.goals) == (2 if torch.get_num_threads() > 1 else 1)


def test_tables_of_speed_are_those_of_the_stored_results() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.filled(text) == text
    for name in bench.NAMES:
        section = re.search(f"<!-- results: {name} -->(.*?)<!-- end -->", text, re.DOTALL)
        assert section[1].count("\n| -") >= (2 if name == "step" else 1)


def test_what_the_article_costs_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "measure", lambda kind, device: Speed(train=0.01, test=0.001))
    result = cost.run(quick=True)
    assert "All 2,520 trials take 1,912 GPU-hours." in result.notes[0]
    assert result.rows[0][:2] == ["cifar10", "vgg11"]
    assert [round(value, 2) for value in result.rows[0][2:]] == [0.31, 4.89, 8.15, 14.17]
    for file in ("speed.md", "evidence.md"):
        assert "1,912 GPU-hours" in (ROOT / "docs" / file).read_text(encoding="utf-8")


def test_no_candidate_always_comes_after_the_same() -> None:
    called: list[str] = []
    seconds = in_turn({name: partial(called.append, name) for name in "abc"}, rounds=29, warmup=1)
    rounds = ["".join(called[at : at + 3]) for at in range(0, 90, 3)]
    assert {"".join(sorted(each)) for each in rounds} == {"abc"}
    assert {each[0] for each in rounds} == {each[2] for each in rounds} == {"a", "b", "c"}
    assert [len(times) for times in seconds.values()] == [29, 29, 29]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_wheel_and_sdist_pass_core_tests_where_only_they_are_installed(tmp_path: Path) -> None:
    """By the tests of the sdist, in environments that borrow torch and pytest, nothing of here."""
    builder = tmp_path / "builder"
    subprocess.run([sys.executable, "-m", "venv", str(builder)], check=True)
    subprocess.run([builder / "bin/pip", "install", "--quiet", "build"], check=True)
    command = [builder / "bin/python", "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    for built in (wheel, sdist):
        clean = tmp_path / built.suffix
        subprocess.run([sys.executable, "-m", "venv", str(clean)], check=True)
        python = [clean / "bin/python"]
        install = ["-m", "pip", "install", "--quiet", "--no-deps", str(built)]
        subprocess.run(python + install, check=True)
        (site,) = clean.glob("lib/*/site-packages")
        # A path in such a file is not searched for more of them: the clone stays unknown.
        (site / "borrowed.pth").write_text(str(Path(pytest.__file__).parents[1]))
        tests = [
            "tests/test_package.py",
            "tests/optim/test_algorithm2.py",
            "tests/optim/test_coins.py",
        ]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        for words in (
            ["-c", "import stochbatch; print(stochbatch.__file__)"],
            ["-m", "pytest", *tests],
        ):
            done = subprocess.run(
                python + words, cwd=unpacked, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert str(clean) in done.stdout or words[0] == "-m", done.stdout


@pytest.mark.slow
def test_pip_install_of_the_clone(tmp_path: Path) -> None:
    """The wheel has the package, its type marker and its licence, and imports elsewhere."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    target = ["--target", str(tmp_path), "-c", "constraints.txt", "."]
    subprocess.run(command + target, cwd=ROOT, check=True, timeout=200)
    listed = ["git", "ls-files", "src"]
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "src/stochbatch/optim/kernels/native.cpp" in files.splitlines()
    for name in files.splitlines():
        assert (tmp_path / Path(name).relative_to("src")).exists(), name
    assert (tmp_path / "bin" / "stochbatch").exists()
    assert list(tmp_path.glob("stochbatch-*.dist-info/licenses/LICENSE"))
    probe = "import stochbatch; print(stochbatch.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", probe],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(tmp_path) in found.stdout


@pytest.mark.parametrize("name", ["method", "published"])
def test_the_pictures_are_those_that_their_script_draws(name: str, tmp_path: Path) -> None:
    path = ROOT / "docs" / "figures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_picture", path)
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    picture.main(tmp_path)
    for theme in ("light", "dark"):
        file = f"{name}-{theme}.svg"
        assert path.with_name(file).read_bytes() == (tmp_path / file).read_bytes()
        assert file in README


def test_links_lead_somewhere() -> None:
    shown = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    for target in [*re.findall(r"\]\(([^)]+)\)", README), *shown]:
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        assert (ROOT / path).exists(), target
        if heading:
            text = (ROOT / path).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings]
            assert heading in slugs, target
