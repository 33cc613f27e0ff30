"""Invariant: the recipes on the page about clusters are what shells, Kubernetes and we can read."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from stochbatch.studies.ray_engine import LOCK_SECONDS, RETRIES
from tests.cli.command import all_commands

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def recipe(name: str) -> str:
    """Return a file that the page shows."""
    assert f"../examples/cluster/{name}" in PAGE
    return (ROOT / "examples" / "cluster" / name).read_text(encoding="utf-8")


def test_every_option_exists() -> None:
    known = {name for one in all_commands()["study", "run"].params for name in one.opts}
    text = re.sub(r" \\\n\s*", " ", PAGE + recipe("slurm.sh"))
    commands = re.findall(r"stochbatch study run [^\n`]*", text)
    commands.append(
        " ".join(recipe("rayjob.yaml").split("entrypoint: >-")[1].split("shut")[0].split())
    )
    assert len(commands) == 5
    words = {word for line in commands for word in shlex.split(line) if word.startswith("--")}
    named = set(re.findall(r"`(--[a-z-]+)", PAGE)) - {"--dependency"}
    assert len(named) >= 5
    assert words | named <= known


def test_the_recipe_for_slurm_is_a_script() -> None:
    subprocess.run(["bash", "-n"], input=recipe("slurm.sh"), text=True, check=True)


def test_the_recipe_for_kubernetes_mounts_the_folder_on_all_nodes() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(recipe("rayjob.yaml"))
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
    assert set(re.findall(r"\b\d+\.\d+\.\d+\b", recipe("Dockerfile") + recipe("rayjob.yaml"))) == {
        ray
    }
    assert (RETRIES, LOCK_SECONDS) == (10, 600)
    assert "up to ten times each" in PAGE
    assert "up to ten minutes" in PAGE
