"""Invariant: a download is whole and the published file, or there is no file and a clear error.

Real downloads from a server of our own on this machine.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from stochbatch import data
from tests.data import official


@dataclass
class Server:
    """What a server has, what was asked of it, and whether it hangs up in the middle."""

    base: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    sent: int = 0
    hangs_up: bool = False


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            state.asked.append(name)
            content = state.files.get(name)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            content = content[: len(content) // 2] if state.hangs_up else content
            with suppress(ConnectionError):  # of someone who has had enough
                for start in range(0, len(content), 1 << 16):
                    self.wfile.write(content[start : start + (1 << 16)])
                    state.sent += 1 << 16

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.base = f"http://127.0.0.1:{http.server_address[1]}/"
        Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield state
        http.shutdown()


@pytest.fixture
def entry(server: Server, tmp_path: Path) -> data.Dataset:
    """SVHN with tiny files, published on the server."""
    folder = official.write("svhn", tmp_path / "elsewhere")
    server.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return official.published("svhn", folder, server.base)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


BOTH = ["test_32x32.mat", "train_32x32.mat"]


def test_what_is_fetched_can_be_loaded_and_is_not_fetched_again(
    entry: data.Dataset, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "usual").write_bytes(b"")
    for _ in range(2):
        paths = data.get(entry, tmp_path / "root", progress=False)
        assert paths == [tmp_path / "root" / "svhn" / file.name for file in entry.files]
    assert sorted(server.asked) == BOTH
    for path in paths:  # a download into a folder of all can be read by all
        assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert data.load(entry, tmp_path / "root").official
    assert data.load(entry, tmp_path / "root", "test").official


@pytest.mark.parametrize("progress", [True, False])
def test_a_progress_bar_is_shown_if_wanted(
    progress: bool, entry: data.Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data.get(entry, tmp_path / "root", progress=progress)
    assert ("100%" in capfd.readouterr().err) == progress


def test_several_that_fetch_at_once_do_no_harm(entry: data.Dataset, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: data.get(entry, tmp_path / "root", progress=False), range(8)))
    assert names(tmp_path / "root") == BOTH
    assert data.load(entry, tmp_path / "root").official


def test_a_stopped_run_is_taken_up_with_the_next_file(
    entry: data.Dataset, server: Server, tmp_path: Path
) -> None:
    content = server.files.pop("test_32x32.mat")
    with pytest.raises(data.DownloadError, match="404"):
        data.get(entry, tmp_path / "root", progress=False)
    assert names(tmp_path / "root") == ["train_32x32.mat"]
    server.files["test_32x32.mat"] = content
    data.get(entry, tmp_path / "root", progress=False)
    assert server.asked == ["train_32x32.mat", "test_32x32.mat", "test_32x32.mat"]


WRONG = b"something else"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda server: server.files.update({"train_32x32.mat": WRONG}),
            f"train_32x32.mat.* hash .*{hashlib.sha256(WRONG).hexdigest()}",
        ),
        (
            lambda server: server.files.update(
                {"train_32x32.mat": server.files["train_32x32.mat"] + bytes(1 << 24)}
            ),
            "more than the published [0-9,]+ bytes",
        ),
        (lambda server: setattr(server, "hangs_up", True), "train_32x32.mat"),
    ],
    ids=["other content", "more than published", "connection breaks"],
)
def test_a_download_that_goes_wrong_leaves_nothing(
    spoil: Callable[[Server], None],
    message: str,
    entry: data.Dataset,
    server: Server,
    tmp_path: Path,
) -> None:
    good = dict(server.files)
    spoil(server)
    with pytest.raises(data.DownloadError, match=message):
        data.get(entry, tmp_path / "root", progress=False)
    assert names(tmp_path / "root") == []
    assert server.sent < 1 << 24
    server.files, server.hangs_up = good, False
    data.get(entry, tmp_path / "root", progress=False)
    assert names(tmp_path / "root") == BOTH


def test_a_server_that_is_not_there_is_an_error_that_says_how_to_do_it_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as closed:  # bound and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        entry = official.published("svhn", official.write("svhn", tmp_path / "elsewhere"), base)
        with pytest.raises(OSError, match="could not fetch") as caught:
            data.get(entry, tmp_path / "root", progress=False)
    assert isinstance(caught.value, data.DownloadError)
    file = entry.files[0]
    for part in (file.name, file.url, file.sha256, str(tmp_path / "root" / "svhn")):
        assert part in str(caught.value)


@pytest.mark.parametrize("folder", ["root/svhn", "root"])
def test_a_wrong_file_that_is_there_is_left_alone(
    folder: str, entry: data.Dataset, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / folder / "train_32x32.mat"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    with pytest.raises(data.HashError) as caught:
        data.get(entry, tmp_path / "root", progress=False)
    found = hashlib.sha256(b"mine").hexdigest()
    for part in (str(path), found, entry.files[0].sha256, "left as it is"):
        assert part in str(caught.value)
    assert path.read_bytes() == b"mine"
    assert server.asked == []


def test_files_in_the_root_itself_are_not_fetched(
    entry: data.Dataset, server: Server, tmp_path: Path
) -> None:
    official.write_svhn(tmp_path)
    for name, content in server.files.items():  # savemat writes the date into its files
        (tmp_path / name).write_bytes(content)
    assert data.get(entry, tmp_path) == [tmp_path / file.name for file in entry.files]
    assert server.asked == []
