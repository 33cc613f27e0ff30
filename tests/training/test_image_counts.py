"""Invariant: of a small test set it is known how often each image was right, and of others nothing.

"Right" is counted over the evaluations behind ``accuracy.mean``, those of the last 10 % of epochs.
"""

import json
from pathlib import Path

import pytest

from stochbatch.training import RunError, run, trainer
from stochbatch.training.run_folder import read_result
from tests.training.runs import Witness, crashed, lasting, small_trial

TRIAL = small_trial(epochs=20, share=0.05, evaluate_every=10)  # two are the last tenth
IN_THE_LAST_TENTH = (19, 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return run(TRIAL, tmp_path_factory.mktemp("whole")).folder


def test_the_mean_over_images_is_the_accuracy(whole: Path) -> None:
    result = read_result(whole)
    counts = [int(count) for count in result.correct.split()]
    assert set(counts) == {0, 1, 2}
    assert sum(counts) / (2 * len(counts)) == pytest.approx(result.accuracy.mean / 100)
    assert result.image_accuracy[0] == pytest.approx(100 * counts[0] / 2)


def test_a_run_killed_in_the_last_tenth_counts_as_if_it_never_had_been(
    whole: Path, tmp_path: Path
) -> None:
    crashed(TRIAL, tmp_path, IN_THE_LAST_TENTH)
    again = Witness()
    result = run(TRIAL, tmp_path, observers=[again])
    assert (again.begun.epoch, again.begun.batch) == (19, 0)
    assert lasting(result.folder) == lasting(whole)


def test_what_an_earlier_version_began_has_no_counts_rather_than_wrong_ones(
    whole: Path, tmp_path: Path, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        state = trainer.Trainer.state
        patch.setattr(
            trainer.Trainer,
            "state",
            lambda self: {name: part for name, part in state(self).items() if name != "correct"},
        )
        crashed(TRIAL, tmp_path, IN_THE_LAST_TENTH)
    result = run(TRIAL, tmp_path)
    assert (result.correct, result.accuracy) == (None, read_result(whole).accuracy)


def test_results_of_large_test_sets_and_of_tuning_have_no_counts(
    whole: Path, tmp_path: Path, monkeypatch
) -> None:
    tuning = run(small_trial(epochs=1, validation=100), tmp_path)
    assert "correct" not in json.loads((tuning.folder / "result.json").read_text())
    monkeypatch.setattr(trainer, "FEW_IMAGES", tuning.data.test_images)
    large = run(TRIAL, tmp_path)
    expected = lasting(whole)
    fields = json.loads(expected["result"])
    del fields["correct"]
    assert lasting(large.folder) == {**expected, "result": json.dumps(fields)}


def test_counts_that_contradict_the_accuracy_are_refused(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / whole.name
    folder.mkdir()
    fields = json.loads((whole / "result.json").read_text())
    first, *rest = fields["correct"].split()
    for odd in ([*rest], ["1" if first != "1" else "0", *rest], ["x", *rest]):
        (folder / "result.json").write_text(json.dumps({**fields, "correct": " ".join(odd)}))
        with pytest.raises(RunError, match="not a result of this version"):
            read_result(folder)
