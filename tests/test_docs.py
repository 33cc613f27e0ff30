"""Invariant: the documentation speaks of code that is there."""

import contextlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest

import stochbatch

DOCS = Path(__file__).parent.parent / "docs"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def article_map() -> ModuleType:
    pytest.importorskip("docutils")
    return script("article_map")


def test_tables_of_the_evidence_are_those_of_its_runs() -> None:
    """``python docs/evidence_tables.py`` fills them."""
    pytest.importorskip("stochbatch.report")
    page = (DOCS / "evidence.md").read_text(encoding="utf-8")
    assert page.count("<!-- table ") >= 5
    assert script("evidence_tables").filled(page) == page


def test_all_of_the_article_is_mapped() -> None:
    entries = article_map().MAP
    mapped = [entry.where for entry in entries]
    assert {f"Eq. {number}" for number in range(9, 22)} <= {*mapped}
    assert {"Eq. 1, 2", "Eq. 3, 4", "Eq. 5 to 8"} <= {*mapped}
    assert {"Abstract", "Conclusion", "Sections 1, 2", "Section 3.1"} <= {*mapped}
    assert {"Section 4.1", "Section 4.2", "Section 4.3"} <= {*mapped}
    assert {"Section 5", *(f"Section 5.{number}" for number in range(1, 5))} <= {*mapped}
    assert {*(f"Table {number}" for number in range(1, 6)), "Figure 1", "Figure 2"} <= {*mapped}
    # Lines of the pseudocode, loops and the first line of each epoch counted once, and for
    # Algorithm 2 its epochs in a training.
    assert [mapped.count(f"Algorithm {number}") for number in (1, 2)] == [5, 9]
    for entry in entries:
        placed = bool(entry.file and entry.text and entry.test)
        assert placed != bool(entry.choice), entry


def test_every_line_in_the_map_exists_once() -> None:
    module = article_map()
    for entry in module.MAP:
        if entry.file:
            number, line = module.line_of(entry)
            assert number > 0
            assert entry.text in line


def test_every_test_in_the_map_exists_once() -> None:
    module = article_map()
    for entry in module.MAP:
        if entry.test:
            file, _, name = entry.test.partition("::")
            text = (module.ROOT / module.TESTS / file).read_text(encoding="utf-8")
            assert len(re.findall(rf"^def {name}\(", text, re.MULTILINE)) == 1, entry


def test_choices_name_settings_that_exist_and_of_trainings_their_defaults() -> None:
    training = pytest.importorskip("stochbatch.training")
    nets = pytest.importorskip("stochbatch.nets")
    text = (
        (DOCS / "method.md").read_text(encoding="utf-8").partition("## What the article leaves")[2]
    )
    named = set(re.findall(r"`([A-Za-z_0-9]+)=", text))
    assert len(named) > 15
    known = defaultdict(list)
    for method in training.METHODS.values():
        for name, value in [*method.settings.items(), ("lr", method.usual_lr)]:
            known[name].append(value)
    for makers in (nets.NETWORKS, training.SCHEDULES):
        for make in makers.values():
            for name, option in inspect.signature(make).parameters.items():
                known[name].append(option.default)
    for name, field in training.Trial.model_fields.items():
        known[name].append(field.default)
    assert named <= known.keys()
    trainings = text.partition("For the trainings")[2]
    for name, value in re.findall(r"`([a-z_0-9]+)=([^`]+)`", trainings):
        given = json.loads(value)
        found = [list(one) if isinstance(one, tuple) else one for one in known[name]]
        assert (given in found) != (value == '"uniform"'), (name, value)


PAGE = r"""# A page

Of $|g_j|$ and $\tilde g_j$:

$$
p = \frac{|g_j| - \mu}{\sigma}
$$

<picture>
  <source media="(prefers-color-scheme: dark)" srcset="method-dark.svg">
  <img alt="A picture" src="method-light.svg" width="800">
</picture>
"""
CONF = """
extensions = ["myst_parser", "generated"]
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
html_theme = "basic"
"""


def test_formulas_and_pictures_need_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("myst_parser")
    pytest.importorskip("sphinx")
    conf = (DOCS / "conf.py").read_text(encoding="utf-8")
    assert 'html_math_renderer = "mathml"\n' in conf
    (tmp_path / "conf.py").write_text(CONF, encoding="utf-8")
    (tmp_path / "index.md").write_text(PAGE, encoding="utf-8")
    for theme in ("light", "dark"):
        name = f"method-{theme}.svg"
        (tmp_path / name).write_bytes((DOCS / "figures" / name).read_bytes())
    command = [sys.executable, "-m", "sphinx", "-W", "-q"]
    environment = {**os.environ, "PYTHONPATH": f"{DOCS}:{DOCS.parent / 'src'}"}
    subprocess.run([*command, tmp_path, tmp_path / "html"], check=True, env=environment)
    page = (tmp_path / "html" / "index.html").read_text(encoding="utf-8")
    assert page.count("<math") == 3
    assert "munder" not in page  # the subscript stands beside the tilde
    assert re.search(r'<img[^>]*class="only-dark"[^>]*src="_images/method-dark.svg"', page)
    assert re.search(r'<img[^>]*class="only-light"[^>]*src="_images/method-light.svg"', page)
    assert not re.findall(r'(?:src|<link[^>]*href)="(?:https?:)?//[^"]*"', page)


def test_links_between_pages_lead_somewhere() -> None:
    for page in [*DOCS.glob("*.md"), DOCS.parent / "CONTRIBUTING.md"]:
        prose = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
            assert target.startswith("https://") or (page.parent / target).exists(), (page, target)


def commands_of(page: str) -> list[str]:
    """Return what a page tells its reader to type, in blocks and within lines."""
    blocks = re.findall(r"```(?:console|sh)\n(.*?)```", page, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    prose = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    typed = (re.sub(r" #.*|[][]", "", line).removeprefix("$ ") for line in lines)
    return [line for line in typed if re.match(r"(stochbatch|python) [^.]", line)]


def test_every_command_in_the_documentation_is_one() -> None:
    """Each is understood by the command line, with its options; modules and scripts exist."""
    typer = pytest.importorskip("typer")
    app = pytest.importorskip("stochbatch.cli.app").app
    pages = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *DOCS.glob("*.md")]
    found = [line for page in pages for line in commands_of(page.read_text(encoding="utf-8"))]
    assert len(found) > 40
    for line in found:
        first, *words = shlex.split(line)
        if first == "stochbatch":
            command, name = typer.main.get_command(app), "stochbatch"
            while words and words[0] in getattr(command, "commands", {}):
                name = words.pop(0)
                command = command.commands[name]
            words = [word for word in words if word != "..."]
            known = getattr(command, "commands", {})
            assert not known or not words or words[0].startswith("-"), line
            with contextlib.suppress(typer.Exit):  # --help
                if words:  # others only name a command
                    command.make_context(name, words)
        elif words[0] == "-m":
            assert words[1] == "pytest" or importlib.util.find_spec(words[1]), line
        else:
            assert (DOCS.parent / words[0]).is_file(), line


def test_the_documentation_is_short() -> None:
    pages = [DOCS.parent / "README.md", *DOCS.glob("*.md")]
    words = [word for page in pages for word in page.read_text(encoding="utf-8").split()]
    assert len([word for word in words if re.search("[A-Za-z]", word)]) <= 10_000


def test_the_example_of_a_study_is_one() -> None:
    studies = pytest.importorskip("stochbatch.studies")
    study = studies.Study.from_file(DOCS.parent / "examples" / "three-rates.toml")
    cells = study.cells(studies.SCALES["paper"])
    assert (len(cells), str(cells[0])) == (12, "method sgd, batch size 16, rate fast")
    assert "slow is better than “fast” and “slower” (rate)" in str(study.claims[1])


def test_targets_and_folders_that_are_named_exist() -> None:
    root = DOCS.parent
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    workflow = (root / ".github" / "workflows" / "check.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"target: \[(.*)\]", workflow)
    named = re.findall(r"make ([a-z-]+)", (root / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(named) >= 6
    assert {*named, *matrix.split(", ")} <= targets
    for folder in re.findall(r"tests/[a-z]+\b", workflow):
        assert (root / folder).is_dir(), folder


def test_the_version_to_cite_is_this_one() -> None:
    text = (DOCS.parent / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {stochbatch.__version__}\n" in text


def test_the_tour_runs_from_its_first_cell_to_its_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, and with a third of the epochs, for time's sake."""
    engine_here = pytest.importorskip("tests.engine_here")
    monkeypatch.setattr("stochbatch.studies.local_engine.run_trials", engine_here.run_trials)
    book = json.loads((DOCS.parent / "examples" / "tour.ipynb").read_text(encoding="utf-8"))
    assert len(book["cells"]) == 10
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    program = "\n".join(cells).replace("epochs=10", "epochs=3").replace("epochs=4", "epochs=1")
    with warnings.catch_warnings():
        exec(compile(program, "tour.ipynb", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    moved, recomputed = re.findall(r"(?:moved|recomputed): +(\[.*\])", printed)
    assert moved == recomputed
    assert "At the settings chosen (2 tried, on validation images; " in printed
