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
from pathlib import Path
from typing import Any, NamedTuple

import torch  # noqa: F401  brings its OpenMP library, which the compiled step then shares

from stochbatch.optim.kernels.fallback import UnavailableError

SOURCE = Path(__file__).with_name("native.cpp")
FLAGS = (
    "-O3",
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

# Built beside, then renamed: processes that build at once do each other no harm, and a build that
# outlives its process is there for the next one.
_SCRIPT = """
partial=$1 target=$2; shift 2
if "$@" -o "$partial"; then chmod 755 "$partial" && mv -f "$partial" "$target"
else rm -f "$partial"; exit 1; fi
"""


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


def _target() -> Path:
    """Return where the library for this source, compiler and machine is, or will be."""
    program, *arguments = compiler()
    found = shutil.which(program)
    if found is None:
        raise UnavailableError(f"no C++ compiler: {program!r} is not on the PATH")
    try:
        stat = os.stat(found)
        identity = hashlib.sha256(SOURCE.read_bytes())
        flags = " ".join([found, *arguments, *FLAGS])
        version = f"{flags} {stat.st_size} {stat.st_mtime_ns} {platform.platform()}"
        identity.update(version.encode() + _machine())
        return cache_folder() / f"native-{identity.hexdigest()[:24]}.so"
    except (OSError, RuntimeError) as error:  # no source was shipped; the user has no home
        raise UnavailableError(f"nothing can be built: {error}") from error


def _command(target: Path) -> list[str]:
    """Return the command that builds the library."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, partial = tempfile.mkstemp(suffix=".partial", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise UnavailableError(f"the cache cannot be written: {error}") from error
    command = [*compiler(), *FLAGS, str(SOURCE)]
    return ["sh", "-c", _SCRIPT, "sh", partial, str(target), *command]


def build() -> Path:
    """Return the built library: the cached one, if there is one for this machine."""
    target = _target()
    if target.exists():
        return target
    try:
        done = subprocess.run(_command(target), capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnavailableError(f"nothing can be built: {error}") from error
    if done.returncode:
        lines = done.stderr.splitlines() or [f"exit status {done.returncode}"]
        complaint = next((line for line in lines if "error" in line), lines[-1])
        raise UnavailableError(f"{compiler()[0]} failed: {complaint}")
    return target


_being_built: Path | None = None


def ready() -> bool:
    """Return whether :func:`library` answers at once; if not, the library is being built."""
    global _being_built
    if _load.cache_info().currsize:
        return True
    if _being_built is None:
        try:
            target = _target()
            if target.exists():
                return True
            shell, option, script, *arguments = _command(target)
            # It may outlive this process: in a session of its own Ctrl-C does not reach it.
            subprocess.run(
                [shell, option, f"({script}) &", *arguments],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            _being_built = Path(arguments[1])
        except (UnavailableError, OSError, subprocess.CalledProcessError):
            return True  # with the reason why there is none
    return not _being_built.exists()


class Library(NamedTuple):
    """The C functions of native.cpp."""

    step: Any
    measure: Any
    move: Any


@functools.cache
def _load() -> Library | UnavailableError:
    try:
        built = build()
    except UnavailableError as error:
        return error
    try:
        opened = ctypes.CDLL(str(built))
        found = Library(opened.sbs_step, opened.sbs_measure, opened.sbs_move)
    except (OSError, AttributeError) as error:
        return UnavailableError(f"the built library does not load, delete it: {error}")
    integer, pointer = ctypes.c_int64, ctypes.c_void_p
    # Number of layers, Memory, Facts.
    layers = (integer, pointer, pointer)
    # Options, seed, step, skipped steps, skip_nonfinite, threads.
    found.step.argtypes = [*layers, pointer, ctypes.c_uint64, pointer, pointer, *[ctypes.c_int] * 2]
    # Threads, where to put Sums.
    found.measure.argtypes = [*layers, ctypes.c_int, pointer]
    # Options, seed, step, threads, Scores, where to put Seen.
    found.move.argtypes = [*layers, pointer, ctypes.c_uint64, pointer, ctypes.c_int, *[pointer] * 2]
    for function in found:
        function.restype = None
    return found


def library() -> Library:
    """Return the C functions; raise ``UnavailableError`` if there are none. Tried once."""
    found = _load()
    if isinstance(found, UnavailableError):
        raise found
    return found
