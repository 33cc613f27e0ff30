"""Invariant: the recipes on the page about clusters are what shells, Kubernetes and we can read."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

from stochbatch.cli.app import app
from stochbatch.studies.ray_engine import LOCK_SECONDS, RETRIES

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text(encoding="utf-8")
CONSTRAINTS = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8")


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return text


def test_every_option_exists() -> None:
    study = typer.main.get_command(app).commands["study"]
    known = {name for one in study.commands["run"].params for name in one.opts}
    commands = re.findall(r"stochbatch study run [^\n]*", re.sub(r" \\\n\s*", " ", PAGE))
    assert len(commands) == 6
    words = {word for line in commands for word in shlex.split(line) if word.startswith("--")}
    table = re.findall(r"^\| `(--[a-z-]+)", PAGE, flags=re.MULTILINE)
    assert len(table) == 5
    assert words | set(table) <= known


def test_the_recipe_for_slurm_is_a_script() -> None:
    subprocess.run(["bash", "-n"], input=block("bash"), text=True, check=True)


def test_the_recipe_for_kubernetes_mounts_the_folder_on_all_nodes() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(block("yaml"))
    words = shlex.split(job["spec"]["entrypoint"])
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        (mount,) = container["volumeMounts"]
        assert words[words.index("--root") + 1].startswith(mount["mountPath"])
        assert [volume["name"] for volume in pod["volumes"]] == [mount["name"]]


def test_numbers_on_the_page_are_those_of_the_code() -> None:
    (ray,) = re.findall(r"^ray==(.*)$", CONSTRAINTS, flags=re.MULTILINE)
    assert set(re.findall(r"\b\d+\.\d+\.\d+\b", block("dockerfile") + block("yaml"))) == {ray}
    assert (RETRIES, LOCK_SECONDS) == (10, 600)
    assert "up to ten times each" in PAGE
    assert "up to ten minutes" in PAGE
