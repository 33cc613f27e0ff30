"""Invariant: where the compiled step cannot be built or loaded, eager ones are taken, and said."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from stochbatch import SBS, param_groups
from stochbatch.optim.kernels import build as building
from tests.optim.networks import moves_natively, same_weights, small_network, train


@pytest.fixture
def no_library(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(building, "_being_built", None)
    building._load.cache_clear()
    yield tmp_path
    building._load.cache_clear()


def one_optimizer(**options: object) -> SBS:
    weight = nn.Parameter(torch.ones(9))
    weight.grad = torch.ones(9)
    return SBS([weight], **options)


def wait_for(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("no-such-compiler", "no C\\+\\+ compiler: 'no-such-compiler' is not on the PATH"),
        ("false", "false failed: exit status 1"),
    ],
)
def test_a_failing_compiler_is_said_once_and_stepped_around(
    program: str, reason: str, no_library, monkeypatch
) -> None:
    monkeypatch.setenv("CXX", program)
    wait_for(building.ready)
    optimizer = one_optimizer()
    with pytest.warns(UserWarning, match=f"SBS takes slow, eager steps: .*{reason}"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert optimizer.steps == 2
    with pytest.raises(RuntimeError, match=f"fused=True: .*{reason}"):
        one_optimizer(fused=True).step()
    assert not list(no_library.rglob("*.partial"))


def test_steps_are_eager_until_the_library_is_built_and_no_bit_shows_it(no_library) -> None:
    networks = [small_network() for _ in range(2)]
    built, eager = (
        SBS(param_groups(network), momentum=0.9, fused=fused)
        for network, fused in zip(networks, (None, False), strict=True)
    )
    last, paths = 0, []
    while len(paths) < 5 or not all(paths[-3:]):
        for network, optimizer in zip(networks, (built, eager), strict=True):
            train(network, optimizer, range(last, last + 1))
        paths.append(moves_natively(built))
        last += 1
        assert same_weights(*networks)
        if last == 5:
            one_optimizer(fused=True).step()  # which waits, and builds it a second time
            wait_for(lambda: not list(no_library.rglob("*.partial")))
    assert not any(paths[:5])
    assert len(list(no_library.rglob("*"))) == 2  # a folder with the library


def test_a_process_that_ends_first_leaves_the_library_to_the_next(no_library) -> None:
    script = (
        "import torch, stochbatch; w = torch.nn.Parameter(torch.ones(9)); w.grad = torch.ones(9);"
        "stochbatch.SBS([w]).step()"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=200)
    assert (child.returncode, child.stdout, child.stderr) == (0, b"", b"")
    wait_for(lambda: list(no_library.rglob("*.so")))
    assert building.ready()


def test_a_source_that_was_not_shipped(no_library, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "SOURCE", tmp_path / "native.cpp")
    with pytest.warns(UserWarning, match="nothing can be built: .*No such file"):
        one_optimizer().step()


def test_a_cache_that_cannot_be_written(no_library, monkeypatch) -> None:
    blocked = no_library / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.warns(UserWarning, match="the cache cannot be written"):
        one_optimizer().step()


def test_a_library_that_does_not_load_is_stepped_around(no_library) -> None:
    target = building._target()
    target.parent.mkdir()
    target.write_bytes(b"not a library")
    with pytest.warns(UserWarning, match="the built library does not load, delete it: .*native-"):
        one_optimizer().step()


def test_no_home_for_the_cache(no_library, monkeypatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(building, "cache_folder", homeless)
    with pytest.warns(UserWarning, match="nothing can be built: Could not determine"):
        one_optimizer().step()


def test_a_compiler_may_be_a_command_with_arguments(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "ccache g++ -pipe")
    assert building.compiler() == ["ccache", "g++", "-pipe"]


def test_the_warning_points_at_the_line_that_steps(no_library, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="eager steps") as caught:
        one_optimizer().step()
    assert caught[0].filename == __file__


def test_one_openmp_library_serves_torch_and_the_step() -> None:
    """Two of them would fight over the cores."""
    probe = (
        "import torch; from stochbatch.optim.kernels import native; native.library();"
        "maps = open('/proc/self/maps').read().splitlines();"
        "print({line.split()[-1] for line in maps if 'gomp' in line or 'iomp' in line})"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    output = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, env=os.environ
    )
    assert len(eval(output.stdout)) == 1
