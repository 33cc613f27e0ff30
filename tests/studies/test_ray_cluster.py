"""Invariant: what is wrong with a cluster is said at once, before Ray is asked for anything."""

from __future__ import annotations

import http.server
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from stochbatch.studies.ray_cluster import ClusterError, Share, reach
from tests.cli.command import assert_one_clear_line, call


@pytest.fixture
def web_page() -> Iterator[int]:
    """A server that is no cluster, as Ray's dashboard is none."""

    class Silent(http.server.BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nonsense", "an address is auto or HOST:PORT, got 'nonsense'"),
        (":6379", "an address is auto or HOST:PORT, got ':6379'"),
        ("head:port", "an address is auto or HOST:PORT, got 'head:port'"),
        ("ray://head:10001", "from elsewhere ray job submit --address http://HOST:8265"),
        ("http://head:8265", "from elsewhere ray job submit --address http://HOST:8265"),
        ("no-such-host.invalid:6379", "no Ray cluster at no-such-host.invalid:6379: "),
    ],
)
def test_an_address_that_leads_nowhere(address: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        reach(address)


def test_a_port_where_nobody_is() -> None:
    with pytest.raises(ClusterError, match="no Ray cluster at 127.0.0.1:.*: Connection refused"):
        reach(f"127.0.0.1:{closed_port()}")


def test_a_port_of_something_else(web_page: int) -> None:
    with pytest.raises(ClusterError, match=f"127.0.0.1:{web_page} is no Ray cluster: its port is"):
        reach(f"127.0.0.1:{web_page}")


def test_auto_is_left_to_ray() -> None:
    assert reach("auto") is None  # nothing is asked of any port


@pytest.mark.parametrize("cpus", [0, -1, 1.5, float("nan"), float("inf")])
def test_cpus_that_cannot_be(cpus: float) -> None:
    with pytest.raises(ValueError, match=f"a part of one, or a whole number, got {cpus}"):
        Share(cpus=cpus)


@pytest.mark.parametrize("gpus", [-0.25, 2, float("nan")])
def test_gpus_that_cannot_be(gpus: float) -> None:
    with pytest.raises(ValueError, match=f"must be from 0 to 1, as it trains on one, got {gpus}"):
        Share(gpus=gpus)


def test_a_share_fits_a_node_that_has_as_much() -> None:
    share = Share(cpus=2, gpus=0.5)
    assert share.fits({"CPU": 2.0, "GPU": 1.0})
    assert not share.fits({"CPU": 1.0, "GPU": 1.0})
    assert not share.fits({"CPU": 2.0})
    assert Share().fits({"CPU": 1.0})


def test_the_device_is_the_one_that_is_reserved() -> None:
    assert Share().device("auto") == Share().device("cpu") == "cpu"
    assert Share(gpus=0.25).device("auto") == Share(gpus=0.25).device("cuda") == "cuda"
    with pytest.raises(ValueError, match="with 0 GPUs for each trial the device is 'cpu'"):
        Share().device("cuda")
    with pytest.raises(ValueError, match="with 0.25 GPUs for each trial the device is 'cuda'"):
        Share(gpus=0.25).device("cuda:1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpus-per-trial", "0.5"), "--gpus-per-trial is an option of --engine ray"),
        (("--cpus-per-trial", "2"), "--cpus-per-trial is an option of --engine ray"),
        (("--address", "auto"), "--address is an option of --engine ray"),
        (("--engine", "ray", "--gpus-per-trial", "-1"), "GPUs of a trial must be from 0 to 1"),
        (("--engine", "ray", "--cpus-per-trial", "0"), "CPUs of a trial must be a part of one"),
        (("--engine", "ray", "--device", "cuda"), "with 0 GPUs for each trial the device is 'cpu'"),
        (("--engine", "cloud"), "there are the engines 'local' and 'ray', got 'cloud'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_options_that_do_not_go_together(options: tuple[str, ...], message: str, tmp_path) -> None:
    outcome = call("study", "run", "comparison", "--root", tmp_path / "runs", *options)
    assert_one_clear_line(outcome, 2, message)
    assert not (tmp_path / "runs").exists()


def test_without_ray_the_command_says_what_to_install(tmp_path) -> None:
    probe = (
        "import sys; sys.modules['ray'] = None\n"
        "sys.argv = ['stochbatch', 'study', 'run', 'comparison', '--engine', 'ray']\n"
        "import stochbatch.cli; stochbatch.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr == (
        "error: ray is needed and not there; install it with: pip install 'stochbatch[ray]'\n"
    )
    assert not list(tmp_path.glob("runs/.*"))


@pytest.mark.distributed
def test_an_unreachable_address_is_one_line_within_seconds(tmp_path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    began = time.monotonic()
    options = ("--engine", "ray", "--address", f"127.0.0.1:{closed_port()}")
    outcome = call("study", "run", "comparison", "--root", tmp_path, *options)
    assert time.monotonic() - began < 30
    assert_one_clear_line(outcome, 1, "no Ray cluster at 127.0.0.1", "Connection refused")
    assert signal.getsignal(signal.SIGTERM) is before
    assert not list(tmp_path.iterdir())
