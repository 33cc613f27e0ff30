"""A plugin whose method is slow on demand: its trials are running when something happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stochbatch import plugins
from stochbatch.registry import METHODS
from stochbatch.training import Trial
from tests.training.runs import small_trial

PLUGIN = """
import os, time
from pathlib import Path
import torch
from stochbatch.training import METHODS, Method

FOLDER = Path(__file__).parent

class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        (FOLDER / f"{os.getpid()}.pid").touch()
        if (FOLDER / "slow").exists():
            time.sleep(0.25)
        return super().step(closure)

METHODS.add("slow-sgd", "SGD that can be made slow.", Method("Slow SGD", SlowSGD))
"""


class Plugin:
    """A folder with the plugin: which processes have used it, and whether it is slow."""

    def __init__(self, folder: Path) -> None:
        self.file, self.slow = folder / "slow_sgd.py", folder / "slow"
        self.file.write_text(PLUGIN)

    def pids(self) -> set[int]:
        return {int(path.stem) for path in self.file.parent.glob("*.pid")}

    def begin(self, slow: bool) -> None:
        """Forget who has used it."""
        for path in self.file.parent.glob("*.pid"):
            path.unlink()
        if slow:
            self.slow.touch()

    def long(self, **fields: Any) -> Trial:
        """A trial of a second, or of a quarter of a minute while it is slow."""
        return small_trial(**{"method": "slow-sgd", "epochs": 8, "momentum": 0.9, **fields})


@pytest.fixture(scope="module")
def module_plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugin]:
    plugin = Plugin(tmp_path_factory.mktemp("plugin"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOCHBATCH_PLUGINS", str(plugin.file))
        patch.setattr(plugins, "_begun", False)
        patch.setattr(METHODS, "_entries", dict(METHODS._entries))  # as they were, afterwards
        yield plugin


@pytest.fixture
def plugin(module_plugin: Plugin) -> Iterator[Plugin]:
    yield module_plugin
    module_plugin.slow.unlink(missing_ok=True)
