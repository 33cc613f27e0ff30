"""Invariant: the networks are the ones that the article's field knows by these names, and
their options are the same for all."""

import pytest
import torch
from torch import nn

from stochbatch.nets import DROPOUTS, NETWORKS, resnet18, vgg11, vgg_tiny

COUNTS = {
    "vgg11": (9_231_114, 34),
    "resnet18": (11_173_962, 62),
    "resnet50": (23_520_842, 161),
    "vgg_tiny": (94_410, 14),
}
SMALL = 0.0625
OPTIONS = (None, *DROPOUTS)


def sizes(name: str) -> tuple[int, int]:
    return (8, 24) if name == "vgg_tiny" else (32, 96)


def images_for(name: str, size: int | None = None, count: int = 2) -> torch.Tensor:
    channels = 1 if name == "vgg_tiny" else 3
    size = size or sizes(name)[0]
    return torch.randn(count, channels, size, size)


@pytest.mark.parametrize("name", NETWORKS)
def test_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        parameters = list(NETWORKS[name]().parameters())
    assert (sum(p.numel() for p in parameters), len(parameters)) == COUNTS[name]
    assert NETWORKS.summary(name).endswith(".")
    assert NETWORKS[name].__name__ == name


@pytest.mark.parametrize("name", COUNTS)
def test_options_reach_the_network(name: str) -> None:
    network = NETWORKS[name](classes=7, channels=2, width=0.125)
    assert network(torch.randn(2, 2, 32, 32)).shape == (2, 7)
    full = next(p for p in NETWORKS[name](width=0.25).parameters())
    assert len(full) == 2 * len(next(network.parameters()))


@pytest.mark.parametrize("name", COUNTS)
def test_no_width_is_so_small_that_a_layer_is_empty(name: str) -> None:
    network = NETWORKS[name](width=1e-9)
    assert all(p.numel() > 0 for p in network.parameters())


def test_parameters_of_a_network_have_the_names_that_saved_weights_use() -> None:
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert list(vgg_tiny().state_dict()) == [
        f"features.{place}.{name}"
        for first in (0, 4, 8)
        for place, names in ((first, ("weight", "bias")), (first + 1, norm))
        for name in names
    ] + ["classifier.weight", "classifier.bias"]
    assert [key for key, _ in resnet18(width=SMALL).named_parameters() if ".5." in key] == [
        "features.5.branch.0.weight",
        "features.5.branch.1.weight",
        "features.5.branch.1.bias",
        "features.5.branch.3.weight",
        "features.5.branch.4.weight",
        "features.5.branch.4.bias",
        "features.5.shortcut.0.weight",
        "features.5.shortcut.1.weight",
        "features.5.shortcut.1.bias",
    ]


@pytest.mark.parametrize("which", [0, 1], ids=["smallest", "larger"])
@pytest.mark.parametrize("name", COUNTS)
def test_images_of_both_sizes_give_logits_and_gradients(name: str, which: int) -> None:
    network = NETWORKS[name](width=0.125)
    logits = network(images_for(name, sizes(name)[which]))
    assert logits.shape == (2, 10)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("dropout", [None, "adaptive"])
@pytest.mark.parametrize("name", COUNTS)
def test_a_memory_layout_changes_neither_logits_nor_gradients(name: str, dropout) -> None:
    images = images_for(name, count=4)
    network = NETWORKS[name](width=SMALL, dropout=dropout).double().eval()
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        network.to(memory_format=layout).zero_grad()
        logits = network(images.double().contiguous(memory_format=layout))
        logits.square().sum().backward()
        found.append([logits, *(p.grad.clone() for p in network.parameters())])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", COUNTS)
def test_weights_start_as_torch_draws_them(name: str) -> None:
    network = NETWORKS[name](width=0.25)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            bound = module.weight[0].numel() ** -0.5
            for drawn in module.parameters(recurse=False):
                assert drawn.abs().max() <= bound
            if module.weight.numel() > 1000:  # the largest of n reaches 0.97 but for 0.97^n
                assert module.weight.abs().max() > 0.97 * bound
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()


@pytest.mark.parametrize(
    ("option", "error", "message"),
    [
        ({"width": -1}, ValueError, "width must be above 0, got -1"),
        ({"width": float("nan")}, ValueError, "width must be finite, got nan"),
        ({"width": "half"}, TypeError, "width must be a number, got str: 'half'"),
        ({"classes": 0}, ValueError, "classes must be 1 or more, got 0"),
        ({"classes": 2.0}, TypeError, "classes must be an int, got float: 2.0"),
        ({"channels": -3}, ValueError, "channels must be 1 or more, got -3"),
        (
            {"dropout": "heads"},
            ValueError,
            "dropout must be None or one of ('head', 'block', 'all', 'adaptive'), got 'heads'",
        ),
        ({"dropout_rate": 1}, ValueError, "dropout_rate must be in [0, 1), got 1"),
        ({"dropout_rate": float("inf")}, ValueError, "dropout_rate must be finite, got inf"),
        ({"dropout_rate": None}, TypeError, "dropout_rate must be a number, got NoneType: None"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["vgg_tiny", "resnet18"])
def test_bad_options_are_named(name: str, option, error, message) -> None:
    with pytest.raises(error) as caught:
        NETWORKS[name](**option)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "shape", "message"),
    [
        (vgg11, (1, 3, 31, 40), "at least 32x32 for a network that halves them 5 times, got 31x40"),
        (vgg11, (1, 3, 40, 8), "at least 32x32 for a network that halves them 5 times, got 40x8"),
        (vgg_tiny, (1, 1, 7, 7), "at least 8x8 for a network that halves them 3 times, got 7x7"),
    ],
)
def test_images_too_small_for_the_network_are_refused(make, shape, message: str) -> None:
    with pytest.raises(ValueError, match=f"^images must be {message}$"):
        make(width=SMALL).eval()(torch.zeros(shape))
