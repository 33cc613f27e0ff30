"""Invariant: a dropout drops where its name says and in training alone, and moves no weight
to another name or place."""

import math
from functools import partial

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from stochbatch.nets import DROPOUTS, NETWORKS, ResNet, StochasticDepth
from stochbatch.nets.resnet import Block
from tests.nets.test_networks import COUNTS, OPTIONS, SMALL, images_for

RESNETS = ("resnet18", "resnet50")
VGGS = ("vgg11", "vgg_tiny")
STAGES = {"vgg11": 5, "vgg_tiny": 3}
BLOCKS = {"resnet18": 8, "resnet50": 16}
INNER = {"resnet18": 1, "resnet50": 2}
RELUS = {"vgg11": 8, "vgg_tiny": 3}
RELUS |= {name: 1 + BLOCKS[name] * (INNER[name] + 1) for name in RESNETS}
EACH_KIND = ("vgg_tiny", "resnet18")
"""One network of each class, where all of a class run the same code."""
BY_ELEMENT = [
    (name, dropout)
    for name in COUNTS
    for dropout in DROPOUTS
    if not (name in RESNETS and dropout == "adaptive")
]


def drawn(name: str, seed: int = 5, **options) -> nn.Module:
    torch.manual_seed(seed)
    return NETWORKS[name](width=SMALL, **options)


def places(network: nn.Module) -> list[tuple[type, str]]:
    """Return what each element-wise dropout follows: the kind of layer, and its name."""
    modules = dict(network.named_modules())
    found = []
    for node in fx.symbolic_trace(network).graph.nodes:
        if node.op == "call_module" and isinstance(modules[node.target], nn.Dropout):
            before = node.args[0].target
            found.append((type(modules[before]), before))
    return found


def followers(network: nn.Module, kind: type) -> list[type]:
    """Return what receives the output of each layer of a kind."""
    modules = dict(network.named_modules())
    return [
        type(modules[user.target]) if user.op == "call_module" else user.op
        for node in fx.symbolic_trace(network).graph.nodes
        if node.op == "call_module" and isinstance(modules[node.target], kind)
        for user in node.users
    ]


@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("name", COUNTS)
def test_weights_and_their_names_and_an_evaluation_are_those_without_dropout(
    name: str, dropout
) -> None:
    plain, dropping = drawn(name), drawn(name, dropout=dropout)
    assert [k for k, _ in plain.named_parameters()] == [k for k, _ in dropping.named_parameters()]
    expected, found = plain.state_dict(), dropping.state_dict()
    assert list(expected) == list(found)
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    images = images_for(name)
    if (name, dropout) in BY_ELEMENT:
        assert torch.equal(dropping.eval()(images), plain.eval()(images))
    without = drawn(name, dropout=dropout, dropout_rate=0)
    assert torch.equal(without(images), plain.train()(images))


@pytest.mark.parametrize(
    ("name", "dropout", "expected"),
    [
        *((name, "head", [nn.AdaptiveAvgPool2d]) for name in COUNTS),
        *((name, "block", [nn.MaxPool2d] * STAGES[name]) for name in VGGS),
        *((name, "block", [nn.ReLU] * BLOCKS[name] * INNER[name]) for name in RESNETS),
        *((name, "all", [nn.ReLU] * RELUS[name] + [nn.AdaptiveAvgPool2d]) for name in COUNTS),
        *((name, "adaptive", [nn.ReLU] * RELUS[name]) for name in VGGS),
        *((name, "adaptive", []) for name in RESNETS),
    ],
)
def test_an_element_is_dropped_where_the_name_says(name: str, dropout, expected: list) -> None:
    network = drawn(name, dropout=dropout)
    found = places(network)
    assert [kind for kind, _ in found] == expected
    if dropout == "block" and name in RESNETS:
        assert all(".branch." in before for _, before in found)
    if dropout == "all":
        assert set(followers(network, nn.ReLU)) == {nn.Dropout}


@pytest.mark.parametrize("name", COUNTS)
def test_an_adaptive_rate_rises_with_depth(name: str) -> None:
    network = drawn(name, dropout="adaptive", dropout_rate=0.4)
    count = BLOCKS.get(name) or RELUS[name]
    rates = [module.p for module in network.modules() if isinstance(module, nn.Dropout)]
    rates += [1 - m.survival for m in network.modules() if isinstance(m, StochasticDepth)]
    assert rates == pytest.approx([0.4 * number / count for number in range(1, count + 1)])


@pytest.mark.parametrize(("name", "dropout"), BY_ELEMENT)
def test_the_rate_is_the_one_asked_for(name: str, dropout) -> None:
    network = drawn(name, dropout=dropout, dropout_rate=0.3)
    rates = [module.p for module in network.modules() if isinstance(module, nn.Dropout)]
    assert rates[-1] == pytest.approx(0.3)
    assert dropout == "adaptive" or set(rates) == {0.3}


@pytest.mark.parametrize("name", COUNTS)
def test_head_drops_and_scales_what_the_linear_layer_gets(name: str) -> None:
    images = images_for(name, count=16)
    received = []
    for dropout in (None, "head"):
        network = drawn(name, dropout=dropout, dropout_rate=0.2)
        network.classifier.register_forward_pre_hook(lambda _, given: received.append(given[0]))
        network(images)
    plain, dropped = received
    assert plain.shape == (16, network.classifier.in_features)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.8)
    # Among the n features that are not zero anyway, the share of zeros strays from the rate
    # by this much with a probability below 2 exp(-2 n t^2) = 1e-6 (Hoeffding).
    lost = (~kept)[plain != 0].float()
    assert abs(lost.mean() - 0.2) < math.sqrt(math.log(2e6) / (2 * lost.numel()))


@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("name", EACH_KIND)
def test_training_follows_the_seed(name: str, dropout) -> None:
    images = images_for(name, count=4)
    network = drawn(name, dropout=dropout)

    def logits(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return network(images)

    first = logits(0)
    assert torch.equal(logits(0), first)
    # Eight coins of stochastic depth all agree by chance in less than a tenth of the pairs.
    assert any(not torch.equal(logits(seed), first) for seed in range(1, 10))


@pytest.mark.parametrize("name", RESNETS)
def test_evaluation_of_stochastic_depth_weighs_branches_by_their_survival(name: str) -> None:
    count = BLOCKS[name]
    images = images_for(name)
    plain, dropping = drawn(name).eval(), drawn(name, dropout="adaptive", dropout_rate=0.6).eval()
    features = plain.features[:3](images)
    for number, block in enumerate(plain.features[3:], 1):
        survival = 1 - number / count * 0.6
        features = functional.relu(survival * block.branch(features) + block.shortcut(features))
        torch.testing.assert_close(dropping.features[: 3 + number](images), features)
    logits = functional.linear(features.mean((2, 3)), *plain.classifier.parameters())
    torch.testing.assert_close(dropping(images), logits)


def closing(block: Block, closed: bool) -> Block:
    """Return a block whose coin is known."""
    block.branch[-1].survival = 0.0 if closed else 1.0
    return block


@pytest.mark.parametrize("name", RESNETS)
def test_a_closed_branch_leaves_the_shortcut_and_has_zero_gradients(name: str) -> None:
    block = next(
        block
        for block in drawn(name, dropout="adaptive").features[3:]
        if len(block.shortcut) and block.branch[0].in_channels > 4
    )
    closing(block, closed=True)
    inputs = torch.randn(4, block.branch[0].in_channels, 8, 8)
    features = block(inputs)
    torch.testing.assert_close(features, functional.relu(block.shortcut(inputs)))
    features.square().sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in block.branch.parameters())
    assert all(p.grad.any() for p in block.shortcut.parameters())


def test_an_open_branch_trains_as_without_stochastic_depth() -> None:
    plain, dropping = drawn("resnet18"), drawn("resnet18", dropout="adaptive")
    images = images_for("resnet18")
    for block in dropping.features[3:]:
        closing(block, closed=False)
    for network in (plain, dropping):
        network(images).square().sum().backward()
    pairs = zip(plain.parameters(), dropping.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


def test_batch_norms_of_a_closed_branch_take_their_statistics() -> None:
    block = closing(drawn("resnet18", dropout="adaptive").features[3], closed=True)
    block(torch.randn(4, 4, 8, 8))
    norms = [module for module in block.branch if isinstance(module, nn.BatchNorm2d)]
    assert [int(norm.num_batches_tracked) for norm in norms] == [1, 1]
    assert all(norm.running_mean.any() for norm in norms)


def test_what_a_closed_branch_holds_does_not_reach_the_features() -> None:
    gate = StochasticDepth(survival=0.0)
    assert torch.equal(gate(torch.tensor([1.0, math.inf, math.nan])), torch.zeros(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("survival", [0.95, 0.5])
def test_a_branch_is_open_as_often_as_it_should_be(survival: float, dtype, device: str) -> None:
    gate, branch = StochasticDepth(survival), torch.ones(3, 2, 1, 1, dtype=dtype, device=device)
    draws = torch.stack([gate(branch) for _ in range(4000)]).flatten(1)
    assert draws.dtype == dtype
    assert (draws == draws[:, :1]).all(), "one coin for all samples and channels of a batch"
    # Hoeffding: fails by chance with a probability below 2 exp(-2 * 4000 * 0.05^2) = 5e-9.
    assert abs(draws[:, 0].double().mean() - survival) < 0.05


def test_a_rare_coin_falls_for_features_of_low_precision_too() -> None:
    # A uniform of bfloat16 is a multiple of 1/256 and so never in [0.999, 1). No closed batch
    # among 20,000 comes by chance with a probability of 0.999^20000 = 2e-9.
    gate, branch = StochasticDepth(0.999), torch.ones((), dtype=torch.bfloat16)
    assert any(gate(branch) == 0 for _ in range(20_000))


def test_blocks_draw_coins_of_their_own() -> None:
    # Survival 1/2 in both: coins that were shared would agree in all 64 batches, single ones
    # do so by chance with a probability of 2^-64.
    first, second = StochasticDepth(0.5), StochasticDepth(0.5)
    branch = torch.ones(1)
    assert any(first(branch) != second(branch) for _ in range(64))


def test_the_gate_keeps_the_memory_layout() -> None:
    branch = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    for training in (True, False):
        features = StochasticDepth(0.5).train(training)(branch)
        assert features.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dropout", OPTIONS)
@pytest.mark.parametrize("name", EACH_KIND)
def test_nothing_waits_for_a_value(name: str, dropout) -> None:
    # Tensors of the meta device have no values: reading one, for example a coin, raises.
    network = drawn(name, dropout=dropout).to("meta")
    network(images_for(name).to("meta")).sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("dropout", OPTIONS)
@pytest.mark.parametrize("name", EACH_KIND)
def test_a_symbolic_trace_is_the_network(name: str, dropout) -> None:
    network = drawn(name, dropout=dropout)
    images = images_for(name)
    for training in (True, False):
        network.train(training)
        traced = fx.symbolic_trace(network)
        torch.manual_seed(1)
        expected = network(images)
        torch.manual_seed(1)
        assert torch.equal(traced(images), expected)


def bottlenecks(width: float = SMALL, **options) -> ResNet:
    """Return a short network with everything that a residual network here has."""
    return ResNet((0, 1, 0, 0), True, width=width, **options)


def check_compiled(network: nn.Module, images: torch.Tensor, backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(network, backend=backend, fullgraph=True)
    weights = list(network.parameters())
    found, expected = [], []
    for call, results in ((compiled, found), (network, expected)):
        torch.manual_seed(1)
        logits = call(images)
        results += [logits, *torch.autograd.grad(logits.square().sum(), weights)]
    if backend == "aot_eager":  # the same kernels, the same generator
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    else:  # inductor draws random numbers of its own
        assert all(result.isfinite().all() for result in found)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), network(images), rtol=1e-3, atol=1e-5)


# Between them they have every module that a network here has; the slow test below has all options.
@pytest.mark.parametrize(
    ("make", "dropout"), [(partial(drawn, "vgg_tiny"), "all"), (bottlenecks, "adaptive")]
)
def test_a_network_compiles_as_one_graph(make, dropout) -> None:
    channels = 3 if make is bottlenecks else 1
    check_compiled(make(dropout=dropout), torch.randn(2, channels, 8, 8), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("dropout", OPTIONS)
@pytest.mark.parametrize("name", ["vgg11", "resnet18", "resnet50"])
def test_the_articles_networks_compile_as_one_graph(name: str, dropout) -> None:
    check_compiled(drawn(name, dropout=dropout), images_for(name), "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("dropout", ["all", "adaptive"])
def test_compiles_to_machine_code(dropout) -> None:
    check_compiled(drawn("vgg_tiny", dropout=dropout), images_for("vgg_tiny"), "inductor")
    # Wider than elsewhere: inductor lays images out channels-last, and there torch 2.13 on a
    # CPU corrupts memory in the backward of a 1x1 convolution of stride 2 and few channels.
    check_compiled(bottlenecks(0.25, dropout=dropout), torch.randn(2, 3, 8, 8), "inductor")


def test_a_compiled_network_draws_new_coins_for_each_batch() -> None:
    torch.compiler.reset()
    network = nn.Sequential(StochasticDepth(0.5))
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    # 64 equal coins come by chance with a probability of 2^-63.
    assert {float(compiled(torch.ones(()))) for _ in range(64)} == {0.0, 1.0}
