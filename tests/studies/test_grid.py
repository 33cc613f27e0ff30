"""Invariant: a study is the article's table, cell by cell, or what its file says."""

import csv
import re
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

from stochbatch.data import load
from stochbatch.studies import SCALES, STUDIES, Study, StudyError, collect
from stochbatch.training.trainer import Trainer

PAPER = SCALES["paper"]
CELLS = {
    "lr-schedules": 16,
    "batch-momentum": 32,
    "local-global": 16,
    "partial-data": 48,
    "comparison": 252,
}


@pytest.mark.parametrize("name", CELLS)
def test_every_cell_of_the_article_has_its_published_numbers(name: str) -> None:
    cells = STUDIES[name].cells(PAPER)
    assert len(cells) == CELLS[name]
    ours = [cell for cell in cells if cell.coordinates.get("method") == "Entropy-SGD"]
    assert len(ours) == (36 if name == "comparison" else 0)  # at its authors' rate, not as printed
    assert all((cell.published is None) == (cell in ours) for cell in cells)
    printed = [cell.published for cell in cells if cell.published]
    assert all((one.max is None) == (name == "partial-data") for one in printed)


def published_rows() -> list[dict[str, str]]:
    text = (resources.files("stochbatch.studies") / "published.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def test_all_published_numbers_are_used_but_the_differences() -> None:
    rows = [row for row in published_rows() if row["method"] != "Ours-SGD"]
    cells = [cell.published for name in CELLS for cell in STUDIES[name].cells(PAPER)]
    used = sum(1 + (one.max is not None) for one in cells if one)
    assert used == len(rows) == 608


def test_what_method_md_says_of_the_article_s_own_numbers() -> None:
    rows = [row for row in published_rows() if row["stat"] == "mean"]
    keys = ("table", "dataset", "model", "batch_size", "train_ratio", "method")
    found = {tuple(row[key] for key in keys): float(row["value"]) for row in rows}

    def gain(*place: str) -> float:
        return round(found[(*place, "Ours")] - found[(*place, "SGD")], 2)

    printed = {key[:-1]: value for key, value in found.items() if key[-1] == "Ours-SGD"}
    assert len(printed) == 24
    assert [round(abs(gain(*key) - value), 2) for key, value in printed.items()].count(0.01) == 12
    lines = [
        [gain("partial_training", "CIFAR10", net, size, share) for share in ("1/2", "1/4", "1/8")]
        for net in ("VGG11", "ResNet18")
        for size in ("16", "32", "64", "128")
    ]
    assert sum(line[0] < line[2] for line in lines) == 8
    assert sum(line == sorted(line) for line in lines) == 6
    steadier = []
    for data in ("CIFAR10", "SVHN", "STL10"):
        for net in ("VGG11", "ResNet18", "ResNet50"):
            ours, theirs = (
                [value for key, value in found.items() if key[:3] == place and key[-1] == method]
                for place in [("comparison", data, net)]
                for method in ("Ours", "SGD")
            )
            assert len(ours) == len(theirs) == 4
            steadier.append(max(ours) - min(ours) < max(theirs) - min(theirs))
    assert (sum(steadier), any(steadier[6:])) == (5, False)
    for table, datasets, nets, shares, expected in (
        ("comparison", ("CIFAR10", "SVHN", "STL10"), 3, ("1",), -0.69),
        ("partial_training", ("CIFAR10",), 2, ("1/2", "1/4", "1/8"), 0.07),
    ):
        growths = [
            gain(table, data, net, "128", share) - gain(table, data, net, "16", share)
            for data in datasets
            for net in ("VGG11", "ResNet18", "ResNet50")[:nets]
            for share in shares
        ]
        assert round(sum(growths) / len(growths), 2) == expected
    of_lambda = [row for row in published_rows() if row["param"].endswith("part=lambda")]
    for stat, best in (("mean", "-8"), ("max", "-4")):
        for net in ("VGG11", "ResNet18"):
            values = {
                row["param"].split("lambda=")[1].partition(";")[0]: float(row["value"])
                for row in of_lambda
                if (row["stat"], row["model"]) == (stat, net)
            }
            assert len(values) == 4
            assert max(values, key=values.get) == best
    for size, chosen, better in (("16", "0", "0.3"), ("32", "0.3", "0.6")):
        means = {
            row["param"].partition("=")[2]: float(row["value"])
            for row in rows
            if (row["table"], row["model"], row["batch_size"]) == ("batch_momentum", "VGG11", size)
        }
        assert max(means, key=means.get) == better
        assert round(means[better] - means[chosen], 2) == (0.02 if size == "16" else 0.01)


def test_one_study_is_not_of_the_article() -> None:
    assert set(STUDIES) - set(CELLS) == {"readings", "printed-cell"}
    cells = STUDIES["readings"].cells(PAPER)
    assert len(cells) == 24
    assert {cell.published for cell in cells} == {None}
    settings = [cell.fields["settings"] for cell in cells if cell.fields.get("settings")]
    readings = {(one.get("compare", "kind"), one["cross_layer"]) for one in settings}
    assert readings == {
        *(("kind", score) for score in ("total", "mean", "weighted")),
        *(("type", "total"), ("all", "total"), ("all", "mean")),
    }


def test_what_is_yet_to_be_tuned_has_no_published_number(tmp_path: Path) -> None:
    found = collect(STUDIES["printed-cell"], PAPER, tmp_path).cells
    printed = {one.cell.key[0]: one.cell.published for one in found}
    assert [label for label, value in printed.items() if value] == ["SGD", "SBS"]
    assert (printed["SGD"].mean, printed["SBS"].mean) == (77.47, 78.98)


def test_some_numbers_by_hand() -> None:
    """Looked up in the article's tables."""
    cells = {cell.key: cell for cell in STUDIES["lr-schedules"].cells(PAPER)}
    assert cells["vgg11", "constant 0.1"].published.mean == 83.44
    assert cells["vgg11", "Exponential"].published.mean == 91.23
    cells = {cell.key: cell for cell in STUDIES["comparison"].cells(PAPER)}
    assert cells["cifar10", "vgg11", "16", "SGD"].published.mean == 92.03
    assert cells["cifar10", "vgg11", "16", "Dropout"].published.mean == 91.17
    cells = {cell.key: cell for cell in STUDIES["partial-data"].cells(PAPER)}
    assert cells["vgg11", "16", "0.25", "SGD"].published.mean == 84.78


@pytest.mark.parametrize(
    "other",
    [
        {"epochs": 50},
        {"width": 0.5},
        {"augment": False},
        {"weight_decay": 0.0},
        {"precision": "bf16"},
        {"validation": 500},
        {"lr": 0.5},
        {"schedule": "constant"},
        {"schedule_settings": {"steepness": 4.0}},
        {"share": 0.9996},
        {"share": float("inf")},
        {"batch_size": 16, "momentum": 0.9},
    ],
)
def test_a_training_that_is_not_the_article_s_has_no_published_numbers(other: dict) -> None:
    article = STUDIES["comparison"]
    axes = [axis for axis in article.axes if axis.name != "batch size" or len(other) == 1]
    own = article.model_copy(update={"base": {**article.base, **other}, "axes": axes})
    there = {cell.key[-1] for cell in own.cells(PAPER) if cell.published is not None}
    # Which have a momentum of their own (none), and a rate.
    allowed = {"momentum": {"Accelerated-SGD"}, "lr": {"Entropy-SGD as printed"}}
    assert there <= set().union(*(allowed.get(name, set()) for name in other))


def test_what_the_article_does_not_state_may_be_chosen() -> None:
    article = STUDIES["comparison"]
    same = {"epochs": 100, "width": 1, "norm_init": "uniform", "compile": True}
    for every in (1, 10):
        fields = {**article.base, **same, "evaluate_every": every}
        cells = article.model_copy(update={"base": fields}).cells(PAPER)
        printed = [cell.published for cell in cells if cell.key[-1] != "Entropy-SGD"]
        assert {one.max is None for one in printed} == {every > 1}


def labels_with_numbers(name: str, *points: dict[str, Any]) -> set[str]:
    """Return those of some labels on a study's last axis that have published numbers."""
    article = STUDIES[name]
    axes = [*article.axes[:-1], article.axes[-1].model_copy(update={"points": list(points)})]
    cells = article.model_copy(update={"axes": axes, "claims": []}).cells(PAPER)
    return {cell.key[-1] for cell in cells if cell.published}


@pytest.mark.parametrize(
    ("point", "there"),
    [
        ({"label": "SBS", "method": "sbs", "settings": {"lambd": -4.0}}, True),
        ({"label": "SBS", "method": "sbs", "settings": {"lambd": -2.0}}, False),
        ({"label": "Entropy-SGD", "method": "entropy-sgd", "lr": 0.1}, True),
        ({"label": "Entropy-SGD", "method": "entropy-sgd"}, False),  # at its own usual rate
    ],
)
def test_a_method_has_published_numbers_only_as_the_article_has_it(
    point: dict[str, Any], there: bool
) -> None:
    assert bool(labels_with_numbers("comparison", point)) == there


def test_a_schedule_has_the_published_numbers_of_its_own_label_only() -> None:
    points = [
        {"label": "Sigmoid", "schedule": "constant", "lr": 0.1},
        {"label": "Adam", "method": "sgd", "schedule": "constant", "lr": 0.0001},
        {"label": "Staircase", "schedule": "staircase", "lr": 0.1},
        {"label": "of my own", "schedule": "staircase", "lr": 0.1},
    ]
    assert labels_with_numbers("lr-schedules", *points) == {"Staircase"}
    article = STUDIES["lr-schedules"]
    without = article.model_copy(update={"axes": article.axes[:1], "claims": []})
    assert {cell.published for cell in without.cells(PAPER)} == {None}


def test_the_article_s_momenta_go_with_its_batch_sizes() -> None:
    assert {STUDIES[name].planned(PAPER) for name in CELLS} == {10}
    for cell in STUDIES["comparison"].cells(PAPER):
        trial = cell.trial(0)
        expected = {16: 0.0, 32: 0.3, 64: 0.6, 128: 0.9}[trial.batch_size]
        assert trial.momentum == (0.0 if trial.method == "acc-sgd" else expected)
        assert (trial.epochs, trial.share, trial.width) == (100, 1.0, 1.0)
        if cell.coordinates["method"] != "Entropy-SGD":
            rates = trial.lr, trial.schedule, trial.schedule_settings["end_lr"]
            assert rates == (0.1, "sigmoid", 0.001)


@pytest.mark.parametrize("method", ["SBS", "Dropout", "Entropy-SGD", "Accelerated-SGD"])
def test_methods_begin_alike_and_see_the_same_images_so_that_differences_are_paired(
    method: str,
) -> None:
    cells = STUDIES["comparison"].cells(SCALES["demo"], {"batch size": ["16"]})
    by_method = {cell.coordinates["method"]: cell for cell in cells}
    train, test = (load("digits", split=split) for split in ("train", "test"))

    def trainer(label: str, seed: int) -> Trainer:
        return Trainer(by_method[label].trial(seed), train, test, torch.device("cpu"))

    ours, theirs, other = trainer(method, 1), trainer("SGD", 1), trainer("SGD", 2)
    first, second = ours.network.state_dict(), theirs.network.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["features.0.weight"], other.network.features[0].weight)
    for epoch in (0, 3):
        both = zip(ours.batches.epoch(epoch), theirs.batches.epoch(epoch), strict=True)
        for (images, labels), (same_images, same_labels) in both:
            assert torch.equal(images, same_images)
            assert torch.equal(labels, same_labels)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_trial_of_every_scale_can_be(name: str, scale: str) -> None:
    study = STUDIES[name]
    assert study.trials(study.cells(SCALES[scale]), 1)


def test_one_trial_behind_two_cells_is_run_once() -> None:
    study = STUDIES["local-global"]
    assert len(study.trials(study.cells(PAPER), 10)) == 140  # 14 distinct of 16


def test_the_demo_has_one_network_and_one_data_set() -> None:
    cells = STUDIES["comparison"].cells(SCALES["demo"])
    assert len(cells) == 28
    assert {cell.coordinates["dataset"] for cell in cells} == {"digits"}
    assert all(cell.published is None for cell in cells)


OWN = """
title = "Two rates"
repetitions = 4
[base]
dataset = "digits"
epochs = 2
method = "sbs"
settings = { alpha = 0.5 }
[[axes]]
name = "rate"
field = "lr"
values = [0.1, 0.2]
[[axes]]
name = "batch size"
zip = { batch_size = [16, 128], momentum = [0.0, 0.9] }
[[axes]]
name = "scheme"
points = [{ label = "local", settings = { lambd = 0.0 } }, { label = "both" }]
[[claims]]
axis = "scheme"
better = "both"
than = "local"
"""


def test_a_study_of_one_s_own() -> None:
    study = Study.from_text(OWN, "own")
    cells = study.cells(PAPER)
    assert [cell.key for cell in cells[:3]] == [
        ("0.1", "16", "local"),
        ("0.1", "16", "both"),
        ("0.1", "128", "local"),
    ]
    trial = cells[2].trial(3)
    assert (trial.lr, trial.batch_size, trial.momentum, trial.seed) == (0.1, 128, 0.9, 3)
    assert (trial.settings["alpha"], trial.settings["lambd"]) == (0.5, 0.0)
    assert cells[3].trial(0).settings["lambd"] == -4.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('title = "Two rates"', "", "own: title: field required"),
        ("title", "titel", "own: title: field required"),
        ('axis = "scheme"', 'axis = "schema"', "the claim is about 'schema', axes are ["),
        ('better = "both"', 'better = "bot"', "the claim names 'bot', 'scheme' has"),
        ("momentum = [0.0, 0.9]", "momentum = [0.0]", "lists that go together must be equally"),
        ("values = [0.1, 0.2]", "values = [0.1, 0.1]", "axis 'rate' has a label twice"),
        ("values = [0.1, 0.2]", "", "axis 'rate' must have values for its field"),
        ('name = "batch size"', 'name = "rate"', "two axes have one name"),
        ('label = "local", ', "", "axis 'scheme': a point has no label"),
        ("[base]", "[base", "own: not valid TOML"),
        ("title", '"odd\\nname" = 1\ntitle', "own: odd name: extra inputs are not permitted"),
        ("[base]", "[base]\nseed = 100", "seeds are counted from 0 and the same for all cells"),
        ('field = "lr"\nvalues = [0.1, 0.2]', 'field = "seed"\nvalues = [1, 2]', "leave out seed"),
        ("momentum = [0.0, 0.9]", "lr = [0.1, 0.9]", "axes 'rate' and 'batch size' both set lr"),
        (
            "zip = { batch_size = [16, 128], momentum = [0.0, 0.9] }",
            'points = [{ label = "one", settings = { lambd = 1.0 } }]',
            "the axes 'batch size' and 'scheme' both set settings.lambd",
        ),
        ("[16, 128], momentum = [0.0, 0.9]", "[]", "axis 'batch size' has no point"),
        ("repetitions = 4", 'published = "comparisn"', "the article has no table 'comparisn'"),
        ("repetitions = 4", 'name = "../mine"', "a name must not be a path, got '../mine'"),
    ],
)
def test_a_study_that_cannot_be(old: str, new: str, message: str) -> None:
    with pytest.raises(StudyError, match=re.escape(message)) as caught:
        Study.from_text(OWN.replace(old, new, 1), "own")
    assert "\n" not in str(caught.value)


SEVERAL = """
[[claims]]
name = "rates"
axis = "rate"
better = "0.1"
than = ["0.2", "0.4"]
best = true
[[claims]]
axis = "scheme"
better = "local"
than = "both"
"""


def test_a_study_has_no_claim_or_several() -> None:
    text = OWN.replace("[0.1, 0.2]", "[0.1, 0.2, 0.4]") + SEVERAL
    claims = Study.from_text(text, "own").claims
    assert [str(claim) for claim in claims] == [
        "both is better than local (scheme), all else being equal.",
        "rates: 0.1 is better than “0.2” and “0.4” (rate), all else being equal.",
        "local is better than both (scheme), all else being equal.",
    ]
    by_value = text.replace('"0.1"', "0.1").replace('"0.4"', "0.4")  # as the axis has it
    listed = text.replace('better = "local"', 'better = ["local"]')
    for same in (by_value, listed):
        assert Study.from_text(same, "own").claims == claims
    assert Study.from_text(OWN.split("[[claims]]")[0], "own").claims == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('than = "both"', "than = []", "the claim on 'scheme' names 0 labels to be better than"),
        ("best = true", "", "the claim on 'rate' names 2 labels to be better than: give one, or"),
        ('better = "0.1"', 'better = ["0.1", "0.2"]', "claims.1.better: input should be"),
        ('better = "0.1"', 'better = "0.3"', "the claim names '0.3', 'rate' has"),
        ('than = ["0.2", "0.4"]', 'than = ["0.2", "0.1"]', "the claim on 'rate' names '0.1' twice"),
        ('better = "local"', 'name = "rates"\nbetter = "local"', "two claims are called 'rates'"),
        ('"local"\nthan = "both"', '"both"\nthan = "local"', "two claims are called 'both is"),
        ('axis = "rate"', "", "claims.1.axis: field required"),
        ('["0.2", "0.4"]', "{ rate = 0.4 }", "claims.1.than.0: input should be"),
    ],
)
def test_claims_that_cannot_be(old: str, new: str, message: str) -> None:
    text = OWN.replace("[0.1, 0.2]", "[0.1, 0.2, 0.4]")
    with pytest.raises(StudyError, match=re.escape(message)) as caught:
        Study.from_text(text + SEVERAL.replace(old, new, 1), "own")
    assert "\n" not in str(caught.value)


def test_the_claims_on_readings_compare_what_they_say() -> None:
    study = STUDIES["readings"]
    assert len(study.claims) == 10
    fields = {cell.key[0]: cell.fields for cell in study.cells(PAPER)}
    for claim in study.claims[:5]:
        (than,) = claim.than
        assert fields[claim.better]["lr"] == fields[than]["lr"]
        assert (fields[claim.better]["method"], fields[than]["method"]) == ("sbs", "sgd")


def test_a_cell_that_cannot_be_is_named() -> None:
    study = Study.from_text(OWN.replace("[0.1, 0.2]", "[0.1, -1]"), "own")
    message = "own, rate -1, batch size 16, scheme local: lr: input should be greater"
    with pytest.raises(StudyError, match=message):
        study.trials(study.cells(PAPER), 1)


@pytest.mark.parametrize(
    ("axis", "scale", "message"),
    [
        ('field = "epochs"\nvalues = [10, 50]', "small", "varies epochs, which the scale small"),
        ('field = "network"\nvalues = ["vgg11", "vgg_tiny"]', "demo", "sets to vgg_tiny"),
        # Both are the least that there is.
        ('field = "share"\nvalues = [0.125, 0.1]', "demo", "the same trials at the scale demo"),
        (
            'points = [{ label = "full" }, { label = "quarter", width = 0.25 }]',
            "small",
            "would be the same trials at the scale small, under two names",
        ),
        ('points = [{ label = "many" }, { label = "few", epochs = 60 }]', "small", "the same"),
    ],
)
def test_a_scale_neither_overrules_nor_hides_what_an_axis_varies(
    axis: str, scale: str, message: str
) -> None:
    study = Study.from_text(OWN.replace('field = "lr"\nvalues = [0.1, 0.2]', axis), "own")
    assert len(study.cells(PAPER)) == 8
    with pytest.raises(StudyError, match=message):
        study.cells(SCALES[scale])
    if axis.startswith('field = "share"'):  # one of them alone has one name
        assert len(study.cells(SCALES[scale], {"rate": ["0.1"]})) == 4


def test_a_momentum_is_left_out_where_a_method_has_none() -> None:
    text = """
    title = "Momenta"
    [[axes]]
    name = "method"
    field = "method"
    values = ["sgd", "acc-sgd"]
    [[axes]]
    name = "momentum"
    field = "momentum"
    values = [0.0, 0.9]
    """
    trials = [cell.trial(0) for cell in Study.from_text(text, "own").cells(PAPER)]
    assert [trial.momentum for trial in trials] == [0.0, 0.9, 0.0, 0.0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 2", 'share = "half"', "own, rate 0.1, .*: share: input should be"),
        ("settings = { alpha = 0.5 }", "settings = 3", "own, rate 0.1, .*: settings: "),
    ],
)
def test_nonsense_in_the_base_is_told_with_its_field(
    scale: str, old: str, new: str, message: str
) -> None:
    study = Study.from_text(OWN.replace(old, new), "own")
    with pytest.raises(StudyError, match=message):
        study.trials(study.cells(SCALES[scale]), 1)


def test_a_file_that_is_not_there(tmp_path) -> None:
    with pytest.raises(StudyError, match="none.toml cannot be read"):
        Study.from_file(tmp_path / "none.toml")
