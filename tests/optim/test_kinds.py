"""Invariant: a parameter's kind follows from the module that holds it, and from its role there."""

import hashlib

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from stochbatch import KINDS, SBS, param_groups
from stochbatch.nets import resnet18, resnet50, vgg11, vgg_tiny


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
        "in_proj_weight": "attention_qkv",
        "out_proj.weight": "attention_o",
        "in_proj_bias": "bias",
        "bias_k": "bias",
        "bias_v": "bias",
        "out_proj.bias": "bias",
    }
    unpacked = kinds_of(nn.MultiheadAttention(4, 2, kdim=3, vdim=5))
    assert all(unpacked[f"{x}_proj_weight"] == f"attention_{x}" for x in "qkv")


def test_anything_else_is_other() -> None:
    assert kinds_of(Positions()) == {"table": "other"}


@pytest.mark.parametrize(
    "module", [nn.RNN(2, 3), nn.GRU(2, 3, bidirectional=True), nn.LSTM(2, 3), nn.LSTMCell(2, 3)]
)
def test_recurrent_layers(module: nn.Module) -> None:
    roles = {"weight_ih": "recurrent_input", "weight_hh": "recurrent_hidden"}
    for name, kind in kinds_of(module).items():
        assert kind == roles.get(name[:9], "bias")


def test_the_projection_of_an_lstm() -> None:
    assert kinds_of(nn.LSTM(2, 3, proj_size=1))["weight_hr_l0"] == "recurrent_projection"


DIGESTS = {vgg11: "4d1b6ca1", resnet18: "2ef48917", resnet50: "fdb7e48f", vgg_tiny: "be127579"}


@pytest.mark.parametrize("network", DIGESTS, ids=lambda network: network.__name__)
def test_the_networks_of_the_article_keep_their_numbering(network) -> None:
    """Coins, and so every result that was ever computed, depend on it."""
    groups = param_groups(network())
    names = [(group["kind"], [name for name, _ in group["params"]]) for group in groups]
    assert hashlib.sha256(repr(names).encode()).hexdigest().startswith(DIGESTS[network])
    assert [kind for kind, _ in names] == ["conv", "linear", "bias", "norm_weight", "norm_bias"]


def tree(names: str, **classes: str) -> nn.Module:
    """Return modules by the paths of linear layers; ``classes`` by the last part of a path."""
    model = nn.Module()
    for path in names.split():
        *parents, last = path.split(".")
        module = model
        for part in parents:
            if part not in dict(module.named_children()):
                module.add_module(part, type(classes.get(part, "Part"), (nn.Module,), {})())
            module = module.get_submodule(part)
        module.add_module(last, nn.Linear(2, 2, bias=False))
    return model


TRANSFORMERS = {
    "GPT-2": (
        "h.0.attn.c_attn h.0.attn.c_proj h.0.mlp.c_fc h.0.mlp.c_proj lm_head",
        "attention_qkv attention_o mlp_up mlp_down linear",
    ),
    "Llama": (
        "layers.0.self_attn.q_proj layers.0.self_attn.k_proj layers.0.self_attn.v_proj "
        "layers.0.self_attn.o_proj layers.0.mlp.gate_proj layers.0.mlp.up_proj "
        "layers.0.mlp.down_proj",
        "attention_q attention_k attention_v attention_o mlp_gate mlp_up mlp_down",
    ),
    "Llama by Meta": (
        "layers.0.attention.wq layers.0.attention.wk layers.0.attention.wv layers.0.attention.wo "
        "layers.0.feed_forward.w1 layers.0.feed_forward.w2 layers.0.feed_forward.w3 output",
        "attention_q attention_k attention_v attention_o mlp_gate mlp_down mlp_up linear",
    ),
    "BERT": (
        "layer.0.attention.self.query layer.0.attention.self.key layer.0.attention.self.value "
        "layer.0.attention.output.dense layer.0.intermediate.dense layer.0.output.dense "
        "pooler.dense",
        "attention_q attention_k attention_v attention_o mlp_up mlp_down linear",
    ),
    "OPT": (
        "0.self_attn.k_proj 0.self_attn.v_proj 0.self_attn.q_proj 0.self_attn.out_proj 0.fc1 0.fc2",
        "attention_k attention_v attention_q attention_o mlp_up mlp_down",
    ),
    "Falcon": (
        "h.0.self_attention.query_key_value h.0.self_attention.dense h.0.mlp.dense_h_to_4h "
        "h.0.mlp.dense_4h_to_h",
        "attention_qkv attention_o mlp_up mlp_down",
    ),
    "MPT": (
        "0.attn.Wqkv 0.attn.out_proj 0.ffn.up_proj 0.ffn.down_proj",
        "attention_qkv attention_o mlp_up mlp_down",
    ),
    "Phi-3": (
        "0.self_attn.qkv_proj 0.self_attn.o_proj 0.mlp.gate_up_proj 0.mlp.down_proj",
        "attention_qkv attention_o mlp_gate_up mlp_down",
    ),
    "ViT": (
        "blocks.0.attn.qkv blocks.0.attn.proj blocks.0.mlp.fc1 blocks.0.mlp.fc2 head.fc1 head.fc2",
        "attention_qkv attention_o mlp_up mlp_down linear linear",
    ),
    "cross-attention": (
        "net.0.fn.to_q net.0.fn.to_kv net.0.fn.to_out.0 net.1.fn.fc1",
        "attention_q attention_kv attention_o linear",
    ),
    "Mixtral": (
        "0.self_attn.qkv 0.moe.gate 0.moe.experts.0.w1 0.moe.experts.0.w2 0.moe.experts.0.w3",
        "attention_qkv linear expert_gate expert_down expert_up",
    ),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_matrices_of_transformers_have_kinds_by_role(name: str) -> None:
    names, kinds = TRANSFORMERS[name]
    expected = {
        f"{path}.weight": kind for path, kind in zip(names.split(), kinds.split(), strict=True)
    }
    assert kinds_of(tree(names, fn="Attention")) == expected


def test_an_mlp_finds_the_attention_beside_it_by_its_class() -> None:
    model = nn.ModuleList([tree("SelfAttention.q SelfAttention.k SelfAttention.v SelfAttention.o")])
    model[0].__class__ = type("T5LayerSelfAttention", (nn.Module,), {})
    model.append(tree("DenseReluDense.wi_0 DenseReluDense.wi_1 DenseReluDense.wo"))
    found = [kinds_of(model)[f"1.DenseReluDense.{name}.weight"] for name in ("wi_0", "wi_1", "wo")]
    assert found == ["mlp_gate", "mlp_up", "mlp_down"]


def test_torchs_own_transformer() -> None:
    layer = kinds_of(nn.TransformerDecoderLayer(4, 2, 8))
    assert {name: kind for name, kind in layer.items() if name.endswith("weight")} == {
        "self_attn.in_proj_weight": "attention_qkv",
        "self_attn.out_proj.weight": "attention_o",
        "multihead_attn.in_proj_weight": "attention_qkv",
        "multihead_attn.out_proj.weight": "attention_o",
        "linear1.weight": "mlp_up",
        "linear2.weight": "mlp_down",
        "norm1.weight": "norm_weight",
        "norm2.weight": "norm_weight",
        "norm3.weight": "norm_weight",
    }


@pytest.mark.parametrize(
    "names",
    [
        "fc1 fc2 fc3",
        "features.0 classifier.fc1 classifier.fc2 proj",
        "encoder.linear1 encoder.linear2 decoder.up_proj out_proj",
        "layer4.se.attention.fc1 layer4.se.attention.fc2 fc1",  # squeeze and excitation
        "body.attention.query pooling.attn head.fc1 head.fc2",  # no keys, no values
        "memory.query memory.key memory.value fc1 fc2",  # not called attention
    ],
)
def test_outside_a_block_with_attention_a_linear_layer_is_linear(names: str) -> None:
    assert set(kinds_of(tree(names)).values()) == {"linear"}


def test_only_matrices_have_roles() -> None:
    model = tree("attn.q attn.k attn.v attn.c_proj fc1")
    model.attn.q.bias = nn.Parameter(torch.ones(2))
    model.attn.q_norm = nn.RMSNorm(2)
    model.attn.to_q = nn.Conv2d(1, 1, 1, bias=False)
    model.attn.out = nn.Parameter(torch.ones(2))
    kinds = kinds_of(model)
    assert kinds["attn.q.bias"] == "bias"
    assert kinds["attn.q_norm.weight"] == "norm_weight"
    assert kinds["attn.to_q.weight"] == "conv"
    assert kinds["attn.out"] == "other"
    assert kinds["attn.c_proj.weight"] == "attention_o"


class Conv1D(nn.Module):
    """As Hugging Face has it: a linear layer with a transposed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(2, 6)), nn.Parameter(torch.ones(6))


def test_conv1d_of_gpt2_is_a_linear_layer() -> None:
    assert kinds_of(nn.Sequential(Conv1D())) == {"0.weight": "linear", "0.bias": "bias"}
    model = nn.Module()
    model.attn = nn.Module()
    model.attn.c_attn = Conv1D()
    assert kinds_of(model) == {"attn.c_attn.weight": "attention_qkv", "attn.c_attn.bias": "bias"}


def test_stacked_experts() -> None:
    experts = nn.Module()
    for name in ("gate_up_proj", "down_proj", "mixing"):
        experts.register_parameter(name, nn.Parameter(torch.ones(3, 2, 2)))
    experts.gate_up_proj_bias = nn.Parameter(torch.ones(3, 2))
    assert kinds_of(nn.ModuleDict({"experts": experts})) == {
        "experts.gate_up_proj": "expert_gate_up",
        "experts.down_proj": "expert_down",
        "experts.mixing": "expert",
        "experts.gate_up_proj_bias": "bias",
    }


def test_lora_beside_frozen_projections() -> None:
    base = " ".join(f"0.self_attn.{x}_proj.base_layer" for x in "qkvo")
    adapters = "0.self_attn.q_proj.lora_A.default 0.self_attn.q_proj.lora_B.default"
    model = tree(f"{base} 0.mlp.up_proj {adapters}")
    assert kinds_of(model)["0.self_attn.q_proj.base_layer.weight"] == "attention_q"
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "base_layer" not in name
    assert kinds_of(model) == {
        "0.mlp.up_proj.weight": "mlp_up",
        "0.self_attn.q_proj.lora_A.default.weight": "lora_a",
        "0.self_attn.q_proj.lora_B.default.weight": "lora_b",
    }


def test_a_parametrized_projection_keeps_its_role() -> None:
    model = nn.TransformerEncoderLayer(4, 2, 8)
    parametrizations.spectral_norm(model.linear1)
    assert kinds_of(model)["linear1.parametrizations.weight.original"] == "mlp_up"


def test_a_function_names_kinds_and_new_ones_come_last_as_they_appear() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Conv1d(2, 2, 1), nn.BatchNorm1d(2), nn.Linear(2, 2))
    seen = []

    def kind(module: nn.Module, name: str, parameter: nn.Parameter) -> str | None:
        seen.append((type(module).__name__, name, tuple(parameter.shape)))
        return {"0.weight": "first", "2.weight": "conv", "3.bias": "a last"}.get(name)

    groups = param_groups(model, kind=kind, first={"lr": 0.5})
    assert [(group["kind"], [name for name, _ in group["params"]]) for group in groups] == [
        ("conv", ["1.weight", "2.weight"]),
        ("linear", ["3.weight"]),
        ("bias", ["0.bias", "1.bias"]),
        ("norm_bias", ["2.bias"]),
        ("first", ["0.weight"]),
        ("a last", ["3.bias"]),
    ]
    assert groups[4]["lr"] == 0.5
    assert seen[:3] == [
        ("Linear", "0.weight", (2, 2)),
        ("Linear", "0.bias", (2,)),
        ("Conv1d", "1.weight", (2, 2, 1)),
    ]


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
    with pytest.raises(ValueError, match="no parameter is of kind 'biases', known are conv, lin"):
        param_groups(model, biases={})
    for wrong in ("", 3, True):
        with pytest.raises(ValueError, match=f"kind must be a string.* got {wrong!r}"):
            param_groups(model, kind=lambda *_, wrong=wrong: wrong)
    with pytest.raises(TypeError, match="options of kind 'bias' must be a dict, got 0.1"):
        param_groups(model, bias=0.1)
    with pytest.raises(ValueError, match=r"options of kind 'bias' must not set \['kind'\]"):
        param_groups(model, bias={"kind": "conv"})
    with pytest.raises(ValueError, match="no parameters that require a gradient"):
        param_groups(nn.ReLU())
    with pytest.raises(ValueError, match="'weight' is not initialised: run the model once"):
        param_groups(nn.LazyLinear(3))
