"""Invariant: the recipes on the page about clusters are what shells, Kubernetes and we can read."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from stochbatch.cli.app import app
from stochbatch.studies.ray_cluster import RETRIES
from stochbatch.studies.ray_task import LOCK_SECONDS, MARK

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
CONSTRAINTS = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8")


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return text


def commands() -> list[str]:
    joined = re.sub(r" \\\n\s*", " ", PAGE)
    found = re.findall(r"stochbatch study run [^\n`]*", joined)
    return [re.sub(r" \.\.\.$", "", line) for line in found]


def options_of_run() -> set[str]:
    study = typer.main.get_command(app).commands["study"]
    return {name for one in study.commands["run"].params for name in one.opts}


@pytest.mark.parametrize("line", [*dict.fromkeys(commands())])
def test_every_command_has_options_that_exist(line: str) -> None:
    given = {word for word in shlex.split(line) if word.startswith("--")}
    assert "--engine" in given
    assert given <= options_of_run()


def test_every_option_of_the_table_exists() -> None:
    said = re.findall(r"^\| `(--[a-z-]+)", PAGE, flags=re.MULTILINE)
    assert len(said) == 5
    assert set(said) <= options_of_run()


def test_the_recipe_for_slurm_is_a_script() -> None:
    subprocess.run(["bash", "-n"], input=block("bash"), text=True, check=True)


def test_the_recipe_for_kubernetes_mounts_the_folder_on_all_nodes() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(block("yaml"))
    root = shlex.split(job["spec"]["entrypoint"])
    assert root[:3] == ["stochbatch", "study", "run"]
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        assert root[root.index("--root") + 1].startswith(mount["mountPath"])
        assert [volume["name"] for volume in pod["volumes"]] == [mount["name"]]


def test_the_version_of_ray_is_the_one_that_is_tested() -> None:
    (tested,) = re.findall(r"^ray==(.*)$", CONSTRAINTS, flags=re.MULTILINE)
    assert set(re.findall(r"\b\d+\.\d+\.\d+\b", block("dockerfile") + block("yaml"))) == {tested}


def test_numbers_on_the_page_are_those_of_the_code() -> None:
    assert RETRIES == 10
    assert "up to ten times each" in PAGE
    assert LOCK_SECONDS == 600
    assert "up to ten\nminutes" in PAGE
    assert f"`{MARK}...`" in PAGE
