"""Invariant: where the compiled step cannot be built or loaded, eager ones are taken, and said."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from stochbatch import SBS
from stochbatch.optim import building, fusing


@pytest.fixture
def no_library(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    building._load.cache_clear()
    yield tmp_path
    building._load.cache_clear()


def large_optimizer(**options: object) -> SBS:
    weight = nn.Parameter(torch.ones(fusing.WORTH_BUILDING))
    weight.grad = torch.ones(fusing.WORTH_BUILDING)
    return SBS([weight], **options)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("no-such-compiler", "no C\\+\\+ compiler: 'no-such-compiler' is not on the PATH"),
        ("false", "false failed: .* non-zero exit status"),
        ('"g++', "CXX is no command: No closing quotation"),
    ],
)
def test_a_failing_compiler_is_said_once_and_stepped_around(
    program: str, reason: str, no_library, monkeypatch
) -> None:
    monkeypatch.setenv("CXX", program)
    optimizer = large_optimizer()
    with pytest.warns(UserWarning, match=f"SBS takes slow, eager steps: .*{reason}"):
        optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    assert optimizer.steps == 2
    with pytest.raises(RuntimeError, match=f"fused=True: .*{reason}"):
        large_optimizer(fused=True).step()
    assert not list(no_library.rglob("*.partial"))


def test_a_compiler_that_cannot_be_started(no_library, monkeypatch, tmp_path: Path) -> None:
    program = tmp_path / "compiler"
    program.write_bytes(b"\x00no program")
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    with pytest.warns(UserWarning, match="nothing can be built: .*Exec format error"):
        large_optimizer().step()


def test_a_source_that_was_not_shipped(no_library, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(building, "SOURCE", tmp_path / "native.cpp")
    with pytest.warns(UserWarning, match="nothing can be built: .*No such file"):
        large_optimizer().step()


def test_a_cache_that_cannot_be_written(no_library, monkeypatch) -> None:
    blocked = no_library / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.warns(UserWarning, match="the cache cannot be written"):
        large_optimizer().step()


def test_a_damaged_library_is_built_again(no_library) -> None:
    built = building.build()
    building._load.cache_clear()
    built.write_bytes(b"not a library")
    optimizer = large_optimizer(fused=True)
    optimizer.step()
    assert optimizer.steps == 1
    assert built.stat().st_size > 10_000


def test_a_library_of_somebody_else_that_does_not_load_is_stepped_around(
    no_library, monkeypatch
) -> None:
    built = building.build()
    assert built.stat().st_mode & 0o777 == 0o755
    building._load.cache_clear()
    built.write_bytes(b"not a library")

    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", forbidden)
    with pytest.warns(UserWarning, match="the built library does not load"):
        large_optimizer().step()


def test_no_home_for_the_cache(no_library, monkeypatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(building, "cache_folder", homeless)
    with pytest.warns(UserWarning, match="the cache cannot be written: Could not determine"):
        large_optimizer().step()


def test_a_compiler_may_be_a_command_with_arguments(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "ccache g++ -pipe")
    assert building.compiler() == ["ccache", "g++", "-pipe"]


def test_the_warning_points_at_the_line_that_steps(no_library, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="eager steps") as caught:
        large_optimizer().step()
    assert caught[0].filename == __file__


def test_a_built_library_is_built_once(no_library) -> None:
    first = building.build()
    before = first.stat().st_mtime_ns
    assert building.build() == first
    assert first.stat().st_mtime_ns == before


def test_one_openmp_library_serves_torch_and_the_step() -> None:
    """Two of them would fight over the cores."""
    probe = (
        "import torch; from stochbatch.optim import native; native.library();"
        "maps = open('/proc/self/maps').read().splitlines();"
        "print({line.split()[-1] for line in maps if 'gomp' in line or 'iomp' in line})"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    output = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, env=os.environ
    )
    assert len(eval(output.stdout)) == 1
