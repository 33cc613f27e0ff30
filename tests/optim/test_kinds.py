"""Invariant: a parameter's kind follows from the module that holds it."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from stochbatch import KINDS, SBS, param_groups


def kinds_of(model: nn.Module) -> dict[str, str]:
    return {name: group["kind"] for group in param_groups(model) for name, _ in group["params"]}


CONVOLUTIONS = [
    nn.Conv1d(2, 3, 3),
    nn.Conv2d(2, 3, 3),
    nn.Conv3d(2, 3, 3),
    nn.ConvTranspose1d(2, 3, 3),
    nn.ConvTranspose2d(2, 3, 3),
    nn.ConvTranspose3d(2, 3, 3),
]
NORMS = [
    nn.BatchNorm1d(4),
    nn.BatchNorm2d(4),
    nn.BatchNorm3d(4),
    nn.SyncBatchNorm(4),
    nn.InstanceNorm2d(4, affine=True),
    nn.LayerNorm(4),
    nn.LayerNorm((4, 3)),
    nn.GroupNorm(2, 4),
]


class TheirRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.shift = nn.Parameter(torch.ones(4))


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 4))


@pytest.mark.parametrize("module", CONVOLUTIONS, ids=lambda m: type(m).__name__)
def test_convolutions(module: nn.Module) -> None:
    assert kinds_of(module) == {"weight": "conv", "bias": "bias"}


@pytest.mark.parametrize("module", NORMS, ids=str)
def test_norms(module: nn.Module) -> None:
    assert kinds_of(module) == {"weight": "norm_weight", "bias": "norm_bias"}


def test_norms_of_other_libraries() -> None:
    assert kinds_of(TheirRMSNorm()) == {"scale": "norm_weight", "shift": "norm_bias"}
    assert kinds_of(nn.RMSNorm(4)) == {"weight": "norm_weight"}


def test_linear_and_embedding() -> None:
    assert kinds_of(nn.Linear(2, 3)) == {"weight": "linear", "bias": "bias"}
    assert kinds_of(nn.Bilinear(2, 3, 4)) == {"weight": "linear", "bias": "bias"}
    assert kinds_of(nn.Embedding(3, 2)) == {"weight": "embedding"}
    assert kinds_of(nn.EmbeddingBag(3, 2)) == {"weight": "embedding"}


def test_attention() -> None:
    packed = kinds_of(nn.MultiheadAttention(4, 2, add_bias_kv=True))
    assert packed == {
        "in_proj_weight": "linear",
        "out_proj.weight": "linear",
        "in_proj_bias": "bias",
        "bias_k": "bias",
        "bias_v": "bias",
        "out_proj.bias": "bias",
    }
    unpacked = kinds_of(nn.MultiheadAttention(4, 2, kdim=3, vdim=5))
    assert {unpacked[f"{x}_proj_weight"] for x in "qkv"} == {"linear"}


def test_anything_else_is_other() -> None:
    assert kinds_of(Positions()) == {"table": "other"}
    recurrent = kinds_of(nn.GRU(2, 3))
    assert recurrent["weight_hh_l0"] == "other"
    assert recurrent["bias_hh_l0"] == "bias"


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_weights_keep_the_kind_of_their_module(wrap) -> None:
    kinds = kinds_of(nn.Sequential(wrap(nn.Conv2d(2, 3, 3))))
    assert set(kinds.values()) == {"conv", "bias"}
    assert all(kind == ("bias" if "bias" in name else "conv") for name, kind in kinds.items())


def test_shared_parameters_once_and_frozen_ones_not_at_all() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5), nn.Linear(5, 2))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad = False
    assert kinds_of(model) == {
        "0.weight": "embedding",
        "1.bias": "bias",
        "2.weight": "linear",
    }


def test_groups_are_in_the_order_of_the_kinds_with_their_overrides() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Conv1d(3, 3, 1))
    groups = param_groups(model, bias={"weight_decay": 0.0}, conv={"lr": 0.5}, embedding={})
    kinds = [group["kind"] for group in groups]
    assert kinds == sorted(kinds, key=KINDS.index)
    optimizer = SBS(groups, lr=0.1, weight_decay=1e-3)
    by_kind = {group["kind"]: group for group in optimizer.param_groups}
    assert by_kind["bias"]["weight_decay"] == 0.0
    assert by_kind["linear"]["weight_decay"] == 1e-3
    assert by_kind["conv"]["lr"] == 0.5
    assert by_kind["linear"]["lr"] == 0.1
    assert by_kind["conv"]["param_names"] == ["2.weight"]


def test_groups_serve_other_optimizers_too() -> None:
    optimizer = torch.optim.SGD(param_groups(nn.Linear(2, 2)), lr=0.1)
    assert [group["kind"] for group in optimizer.param_groups] == ["linear", "bias"]


def test_a_compiled_or_wrapped_model_has_the_same_kinds() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    compiled = kinds_of(torch.compile(model))
    assert [*compiled.values()] == [*kinds_of(model).values()]


def test_bad_input() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got list"):
        param_groups([model])
    with pytest.raises(ValueError, match="kind must be one of .* got 'biases'"):
        param_groups(model, biases={})
    with pytest.raises(TypeError, match="options of kind 'bias' must be a dict, got 0.1"):
        param_groups(model, bias=0.1)
    with pytest.raises(ValueError, match=r"options of kind 'bias' must not set \['kind'\]"):
        param_groups(model, bias={"kind": "conv"})
    with pytest.raises(ValueError, match="no parameters that require a gradient"):
        param_groups(nn.ReLU())
    with pytest.raises(ValueError, match="'weight' is not initialised: run the model once"):
        param_groups(nn.LazyLinear(3))
