"""Invariant: neither kill -9 at any instant nor a full disk costs more than what was under way."""

import multiprocessing
import os
import random
import signal
from pathlib import Path

from stochbatch.training import Trial, run
from tests.forked import PRELOADED, forked
from tests.training import survivor
from tests.training.runs import Witness, lasting, small_trial

FULL_DISK = """
import resource, sys
from stochbatch.training import RunError, run, runner
from tests.training.runs import Witness, small_trial
runner.TOLD_EVERY = -1.0
trial = small_trial(epochs=4)
def fill():
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    run(trial, sys.argv[1], observers=[Witness(fill, (2, 1))])
except RunError as error:
    print(error)
"""


def test_a_full_disk_is_a_clear_error_and_the_checkpoint_before_stays_good(tmp_path: Path) -> None:
    """A limit on the size of files, which fails a write as a full disk does."""
    variables = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = forked(["python", "-c", FULL_DISK, tmp_path], env=variables)
    assert "cannot write a checkpoint into" in done.stdout, done.stderr
    assert "the last one that is there: checkpoint-00002-" in done.stdout
    trial = small_trial(epochs=4)
    assert not list((tmp_path / trial.folder).glob(".*.tmp"))
    witness = Witness()
    result = run(trial, tmp_path, observers=[witness])
    assert witness.begun.epoch == 2
    assert lasting(result.folder) == lasting(run(trial, tmp_path / "whole").folder)


def test_killed_at_25_random_instants_it_ends_as_if_it_never_had_been(tmp_path: Path) -> None:
    """Instants are counted in steps and stages of writing, of which a step has five."""
    trial = Trial(method="sbs", momentum=0.5, epochs=6, share=0.5, batch_size=16, width=0.5)
    description = tmp_path / "trial.json"
    description.write_text(trial.to_json())
    expected = lasting(run(trial, tmp_path / "whole").folder)
    folder = tmp_path / "parts" / trial.folder
    # Children of the process that all commands are forked from: they start at once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    generator, inside = random.Random(0), 0
    for _ in range(25):
        # At most nine of the 252 steps: it cannot be over before the last kill.
        arguments = (str(description), str(tmp_path / "parts"), generator.randint(1, 50))
        process = context.Process(target=survivor.survive, args=arguments)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        inside += any(folder.glob(".checkpoint*.tmp"))
    assert inside >= 5, "too few kills within a write"
    result = run(trial, tmp_path / "parts")
    assert lasting(result.folder) == expected
