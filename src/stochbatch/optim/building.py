"""The library of ``native.cpp``: built with a C++ compiler at first use, then cached."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch  # noqa: F401  brings its OpenMP library, which the compiled step then shares

from stochbatch.optim.fusing import UnavailableError

SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = (
    "-O2",
    "-march=native",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-fopenmp",
    "-ffp-contract=off",  # fuse only where torch fuses
    "-fno-math-errno",  # neither this
    "-fno-trapping-math",  # nor this changes a value
    "-fschedule-insns",  # keeps vectors that are written side by side, side by side
    "-Wno-psabi",  # a remark about passing vectors between compilers: nothing here does
)
BUILD_SECONDS = 120


def compiler() -> list[str]:
    """Return the command of the C++ compiler: the one that CXX gives, or the usual one."""
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def cache_folder() -> Path:
    """Return where built libraries are kept."""
    given = os.environ.get("XDG_CACHE_HOME")
    return (Path(given) if given else Path.home() / ".cache") / "stochbatch"


def _machine() -> bytes:
    """Return what ``-march=native`` looks at: several machines may share one cache."""
    try:
        first = Path("/proc/cpuinfo").read_bytes().split(b"\n\n")[0]
    except OSError:
        return platform.processor().encode()
    return b"".join(
        line for line in first.splitlines() if line.startswith((b"flags", b"model", b"Features"))
    )


def build() -> Path:
    """Return the built library: the cached one, if there is one for this machine."""
    try:
        program, *arguments = compiler()
    except ValueError as error:
        raise UnavailableError(f"CXX is no command: {error}") from error
    if shutil.which(program) is None:
        raise UnavailableError(f"no C++ compiler: {program!r} is not on the PATH")
    asked = [program, *arguments, "--version"]
    try:
        identity = hashlib.sha256(SOURCE.read_bytes())
        version = subprocess.run(asked, capture_output=True, check=False).stdout
    except OSError as error:  # no source in a bundle of Python's files alone, or no program
        raise UnavailableError(f"nothing can be built: {error}") from error
    flags = " ".join([*arguments, *FLAGS]).encode()
    for part in (version, flags, _machine(), platform.platform().encode()):
        identity.update(part)
    try:
        target = cache_folder() / f"native-{identity.hexdigest()[:24]}.so"
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Built beside, then renamed: processes that build at once do each other no harm.
        handle, partial = tempfile.mkstemp(suffix=".partial", dir=target.parent)
        os.close(handle)
    except (OSError, RuntimeError) as error:  # the latter where there is no home
        raise UnavailableError(f"the cache cannot be written: {error}") from error
    try:
        subprocess.run(
            [program, *arguments, *FLAGS, str(SOURCE), "-o", partial],
            capture_output=True,
            text=True,
            check=True,
            timeout=BUILD_SECONDS,
        )
        os.chmod(partial, 0o755)  # a cache may be shared
        os.replace(partial, target)
    except subprocess.CalledProcessError as error:
        complaint = next((line for line in error.stderr.splitlines() if "error" in line), "")
        raise UnavailableError(f"{program} failed: {complaint or error}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{program} failed: {error}") from error
    finally:
        Path(partial).unlink(missing_ok=True)
    return target


class Library(NamedTuple):
    """The C functions of native.cpp."""

    step: Any
    measure: Any


def _open() -> Library:
    built = build()
    try:
        return _functions(built)
    except (OSError, AttributeError):
        with suppress(OSError):  # somebody else's stays, and does not load below either
            built.unlink(missing_ok=True)  # damaged: build it once more
    try:
        return _functions(build())
    except (OSError, AttributeError) as error:
        raise UnavailableError(f"the built library does not load: {error}") from error


def _functions(built: Path) -> Library:
    opened = ctypes.CDLL(str(built))
    return Library(opened.sbs_step, opened.sbs_measure)


@functools.cache
def _load() -> Library | UnavailableError:
    try:
        found = _open()
    except UnavailableError as error:
        return error
    integer, pointer = ctypes.c_int64, ctypes.c_void_p
    found.step.argtypes = [
        *(integer, pointer, pointer, pointer),  # number of layers, Memory, Facts, Options
        *(ctypes.c_uint64, pointer, pointer),  # seed, step, skipped steps
        *(ctypes.c_int, ctypes.c_int),  # skip_nonfinite, threads
        *(pointer, pointer),  # of whole tensors, if layers are parts: Sums, and where to put Seen
    ]
    found.step.restype = ctypes.c_int
    # Number of layers, Memory, Facts, threads, where to put Sums.
    found.measure.argtypes = [integer, pointer, pointer, ctypes.c_int, pointer]
    found.measure.restype = None
    return found


def library() -> Library:
    """Return the C functions; raise ``UnavailableError`` if there are none. Tried once."""
    found = _load()
    if isinstance(found, UnavailableError):
        raise found
    return found
