"""Invariant: SBS passes what PyTorch asks of its own optimizers.

The inputs and the wrong inputs are those that torch has for ``torch.optim.SGD``, and SGD goes
through the same tests: a test that it fails would ask too much. What SBS does differently, and
why:

- ``dampening`` is not an option: SBS averages gradients itself.
- ``foreach``, ``capturable`` and ``differentiable`` are not options and are refused as torch
  refuses options that an optimizer lacks (SGD has no ``capturable``): there is one eager and one
  compiled step, and coins have no derivative.
- Sparse gradients are refused: the statistics of a layer need all its scalars.
- A complex parameter has the coins of its real view. Two real parameters in its place have
  others, so they agree only where no coin is drawn (``probability=1``).
- ``fused=True`` takes no slices of larger tensors.
- ``nesterov`` needs a momentum; there is no dampening that the message could name.
"""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerInfo,
    OptimizerInput,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

from stochbatch import SBS
from tests.optim.networks import same_state
from tests.optim.test_native import available

SGD_INFO = next(info for info in optim_db if info.optim_cls is SGD)


def sbs_inputs(device: str, dtype: torch.dtype | None = None) -> list[OptimizerInput]:
    own = {
        "probability one": {"probability": 1.0},
        "local and linear": {"alpha": 1.0, "lambd": 0.0, "lr_scaling": "linear"},
        "means": {"cross_layer": "mean", "momentum": 0.5, "seed": 3},
    }
    return [
        *(one for one in SGD_INFO.optim_inputs_func(device) if "dampening" not in one.kwargs),
        *(OptimizerInput(params=None, kwargs=kwargs, desc=desc) for desc, kwargs in own.items()),
    ]


SBS_INFO = OptimizerInfo(
    SBS,
    optim_inputs_func=sbs_inputs,
    optim_error_inputs_func=SGD_INFO.optim_error_inputs_func,
    scheduler_inputs=SGD_INFO.scheduler_inputs,
    supported_impls=("fused",),
    not_og_supported_flags=SGD_INFO.not_og_supported_flags,
    supports_fused_on=("cpu",) if available() else (),
)
INFOS = {"SGD": SGD_INFO, "SBS": SBS_INFO}


FUSED_INPUTS = ("default", "nesterov")
"""Inputs that are also tried with ``fused`` False and True; the others leave it alone."""


def inputs_of(name: str) -> list[tuple[str, dict[str, Any]]]:
    info = INFOS[name]
    skip = ("foreach", "differentiable")
    fused = _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info, skip)
    chosen = [one for one in fused if one.desc.removesuffix(" & fused") in FUSED_INPUTS]
    return [(name, one.kwargs) for one in (*info.optim_inputs_func("cpu"), *chosen)]


INPUTS = [one for name in INFOS for one in inputs_of(name)]
every_input = pytest.mark.parametrize(("name", "kwargs"), INPUTS, ids=str)
every_input_that_is_not_fused = pytest.mark.parametrize(
    ("name", "kwargs"), [one for one in INPUTS if not one[1].get("fused")], ids=str
)
both = pytest.mark.parametrize("name", INFOS)


class Task:
    """A layer whose outputs are to become zero."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(5)
        weight, bias, self.input = (
            torch.randn(shape, generator=generator).to(dtype) for shape in ((10, 5), (10,), (5,))
        )
        self.params = [nn.Parameter(weight), nn.Parameter(bias)]

    def loss(self) -> Tensor:
        weight, bias = self.params
        return (weight.mv(0.3 * self.input) + bias).square().sum()

    def train(self, optimizer: Optimizer, steps: int, schedulers: list | tuple = ()) -> None:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        for _ in range(steps):
            loss = optimizer.step(closure)
            for scheduler in schedulers:
                plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
                scheduler.step(*[loss] * plateau)

    def make(self, name: str, kwargs: dict, params: Any = None) -> Optimizer:
        kwargs = copy.deepcopy(kwargs)  # a scheduler writes to a tensor
        return INFOS[name].optim_cls(self.params if params is None else params, **kwargs)


def close(one: Task, other: Task) -> bool:
    return all(
        torch.allclose(*pair, rtol=1e-5, atol=1e-6)
        for pair in zip(one.params, other.params, strict=True)
    )


def equal(one: Task, other: Task) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.params, other.params, strict=True))


def improved(before: Tensor, after: Tensor, kwargs: dict) -> bool:
    return bool(after > before if kwargs.get("maximize") else after < before)


# What is refused.


def wrong_inputs(name: str) -> Iterator[tuple[str, ErrorOptimizerInput]]:
    options = {
        "Invalid learning rate: -0.1": {"lr": -0.1},
        "Invalid weight_decay value: -0.5": {"weight_decay": -0.5},
        "Nesterov momentum requires a momentum": {"nesterov": True},
    }
    for regex, kwargs in options.items():
        one = OptimizerInput(params=None, kwargs=kwargs, desc=regex)
        yield name, ErrorOptimizerInput(one, error_type=ValueError, error_regex=regex)
    for error in INFOS[name].optim_error_inputs_func("cpu", torch.float32):
        yield name, error


@pytest.mark.parametrize(
    ("name", "wrong"),
    [one for name in INFOS for one in wrong_inputs(name)],
    ids=lambda one: one if isinstance(one, str) else one.optimizer_error_input.desc,
)
def test_wrong_inputs_are_refused_in_torch_s_words(name: str, wrong: ErrorOptimizerInput) -> None:
    given = wrong.optimizer_error_input
    params = [nn.Parameter(torch.ones(3))] if given.params is None else given.params
    expect = pytest.warns if issubclass(wrong.error_type, Warning) else pytest.raises
    with expect(wrong.error_type, match=wrong.error_regex):
        INFOS[name].optim_cls(params, **given.kwargs)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        (SGD, "capturable"),
        (SBS, "capturable"),
        (SBS, "foreach"),
        (SBS, "differentiable"),
        (SBS, "dampening"),
    ],
)
def test_an_option_that_an_optimizer_lacks_is_refused(kind: type, option: str) -> None:
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        kind([nn.Parameter(torch.ones(3))], **{option: True})


@both
def test_an_unknown_option_of_a_group_is_left_alone(name: str) -> None:
    task = Task()
    optimizer = task.make(name, {}, [{"params": task.params, "capturable": True, "note": 3}])
    task.train(optimizer, 1)
    assert optimizer.param_groups[0]["note"] == 3
    assert optimizer.state_dict()["param_groups"][0]["capturable"] is True


@pytest.mark.parametrize(
    "name",
    ["SGD", pytest.param("SBS", marks=pytest.mark.xfail(reason="our own words", strict=True))],
)
def test_fused_refuses_parameters_without_data(name: str) -> None:
    weight = nn.Parameter(torch.ones(3, device="meta"))
    weight.grad = torch.ones(3, device="meta")
    optimizer = INFOS[name].optim_cls([weight], fused=True)
    words = "`fused=True` requires all the params to be floating point Tensors"
    with pytest.raises(RuntimeError, match=words):
        optimizer.step()


# Where steps lead.


@every_input
def test_it_goes_the_right_way(name: str, kwargs: dict) -> None:
    task = Task()
    before = task.loss()
    task.train(task.make(name, kwargs), 20)
    assert improved(before, task.loss(), kwargs)


@pytest.mark.parametrize("makers", SGD_INFO.scheduler_inputs)
@both
def test_schedulers_may_be_chained(name: str, makers: list) -> None:
    task = Task()
    optimizer = task.make(name, {"lr": 0.01, "momentum": 0.9})
    before = task.loss()
    task.train(optimizer, 20, [make(optimizer) for make in makers])
    assert task.loss() < before
    assert optimizer.param_groups[0]["lr"] <= 0.01


@every_input_that_is_not_fused
def test_parameters_of_any_memory_layout_move_alike(name: str, kwargs: dict) -> None:
    plain, transposed, slices = Task(), Task(), Task()
    weight, bias = plain.params
    transposed.params = [nn.Parameter(weight.detach().t().contiguous().t()), transposed.params[1]]
    slices.params = [
        nn.Parameter(torch.stack([p.detach(), p.detach()], dim=-1)[..., 1]) for p in (weight, bias)
    ]
    assert not any(p.is_contiguous() for p in (transposed.params[0], *slices.params))
    for task in (plain, transposed, slices):
        task.train(task.make(name, kwargs), 5)
    assert close(plain, transposed)
    assert close(plain, slices)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.skipif(not available(), reason="no C++ compiler that can build the step")
def test_the_fused_step_is_the_plain_one(dtype: torch.dtype) -> None:
    for given in sbs_inputs("cpu"):
        plain, fused = Task(dtype), Task(dtype)
        for task, choice in ((plain, False), (fused, True)):
            task.train(task.make("SBS", {**given.kwargs, "fused": choice}), 7)
        assert equal(plain, fused), given


@both
def test_groups_have_rates_of_their_own(name: str) -> None:
    task = Task()
    weight, bias = task.params
    optimizer = task.make(name, {"lr": 1e-2}, [{"params": [weight]}, {"params": bias, "lr": 0.0}])
    before, old_weight, old_bias = task.loss(), weight.detach().clone(), bias.detach().clone()
    task.train(optimizer, 20)
    assert torch.equal(bias, old_bias)
    assert not torch.equal(weight, old_weight)
    assert task.loss() < before


@both
def test_groups_have_a_weight_decay_of_their_own(name: str) -> None:
    task = Task()
    weight, bias = task.params
    groups = [{"params": weight, "weight_decay": 0.1}, {"params": bias}]
    optimizer = task.make(name, {"lr": 0.1}, groups)
    weight.grad, bias.grad = torch.zeros(10, 5), torch.zeros(10)
    before, old_bias = weight.detach().norm(), bias.detach().clone()
    for _ in range(5):
        optimizer.step()
    assert weight.norm() < before
    assert torch.equal(bias, old_bias)


@pytest.mark.parametrize("shape", [(), (1,)])
@every_input
def test_a_rate_may_be_a_tensor(name: str, kwargs: dict, shape: tuple) -> None:
    numbers, tensors = Task(), Task()
    rate = 0.125
    plain = numbers.make(name, {**kwargs, "lr": rate})
    with_tensor = tensors.make(name, {**kwargs, "lr": torch.full(shape, rate)})
    held = with_tensor.param_groups[0]["lr"]
    schedulers = [lr_scheduler.StepLR(o, 2, 0.5) for o in (plain, with_tensor)]
    numbers.train(plain, 5, schedulers[:1])
    tensors.train(with_tensor, 5, schedulers[1:])
    assert close(numbers, tensors)
    assert with_tensor.param_groups[0]["lr"] is held, "a scheduler fills it in place"
    assert held.tolist() == torch.full(shape, rate / 4).tolist()


@every_input_that_is_not_fused
def test_a_complex_parameter_moves_as_its_parts(name: str, kwargs: dict) -> None:
    """SBS only without coins: the parts have coins of their own."""
    if name == "SBS":
        kwargs = {**kwargs, "probability": 1.0}
    start = torch.randn(4, dtype=torch.complex64)
    whole = nn.Parameter(start.clone())
    parts = [nn.Parameter(start.real.clone()), nn.Parameter(start.imag.clone())]
    kind = INFOS[name].optim_cls
    one, other = (kind(p, **copy.deepcopy(kwargs)) for p in ([whole], parts))
    for _ in range(4):
        one.zero_grad()
        other.zero_grad()
        (whole * (1 + 2j)).abs().square().sum().backward()
        pair = torch.complex(*parts)
        (pair * (1 + 2j)).abs().square().sum().backward()
        one.step()
        other.step()
        torch.testing.assert_close(whole.detach(), torch.complex(*parts).detach())


@both
def test_parameters_of_mixed_dtypes_move_in_one_step(name: str) -> None:
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    tasks = [Task(dtype) for dtype in dtypes]
    # Without the global scheme: it compares the layers, and would let one of them wait.
    kwargs = {"lr": 0.05, "lambd": 0.0} if name == "SBS" else {"lr": 0.05}
    optimizer = tasks[0].make(name, kwargs, [p for task in tasks for p in task.params])
    before = [task.loss() for task in tasks]
    for _ in range(10):
        optimizer.zero_grad()
        for task in tasks:
            task.loss().backward()
        optimizer.step()
    assert all(task.loss() < old for task, old in zip(tasks, before, strict=True))
    assert [task.params[0].dtype for task in tasks] == list(dtypes)


# What is not there.


@every_input
def test_without_gradients_nothing_moves(name: str, kwargs: dict) -> None:
    task, same = Task(), Task()
    optimizer = task.make(name, kwargs)
    optimizer.step()
    assert equal(task, same)


@every_input
def test_zero_gradients_move_nothing_without_decay(name: str, kwargs: dict) -> None:
    task, same = Task(), Task()
    optimizer = task.make(name, {**kwargs, "weight_decay": 0.0})
    for parameter in task.params:
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(3):
        optimizer.step()
    assert equal(task, same)


@every_input
def test_empty_and_scalar_parameters(name: str, kwargs: dict) -> None:
    empty, scalar = nn.Parameter(torch.ones(0, 4)), nn.Parameter(torch.tensor(2.0))
    kind = INFOS[name].optim_cls
    only = kind([empty], **kwargs)
    empty.grad = torch.ones(0, 4)
    only.step()
    optimizer = kind([empty, scalar], **{**kwargs, "lr": 0.1})
    for _ in range(20):
        scalar.grad = scalar.detach().clone()
        optimizer.step()
    assert improved(torch.tensor(2.0), scalar, kwargs)


@pytest.mark.parametrize("set_to_none", [True, False])
@both
def test_zero_grad(name: str, set_to_none: bool) -> None:
    task = Task()
    optimizer = task.make(name, {})
    task.loss().backward()
    held = task.params[0].grad
    optimizer.zero_grad(set_to_none=set_to_none)
    assert (task.params[0].grad is None) == set_to_none
    if not set_to_none:
        assert task.params[0].grad is held
        assert not held.any()


# What is saved and copied.


@pytest.mark.parametrize("way", ["state dict", "file", "named", "deepcopy", "pickle"])
@every_input
def test_a_copy_goes_on_as_the_original(name: str, kwargs: dict, way: str) -> None:
    first = Task()
    original = first.make(name, kwargs)
    first.train(original, 4)
    if way in ("deepcopy", "pickle"):
        both = (first, original)
        copied = pickle.loads(pickle.dumps(both)) if way == "pickle" else copy.deepcopy(both)
        second, other = copied
        public = [{a for a in vars(o) if not a.startswith("_")} for o in (original, other)]
        assert public[0] == public[1]
    else:
        second = copy.deepcopy(first)
        named = list(zip("ab", second.params, strict=True)) if way == "named" else None
        other = second.make(name, {}, named)
        saved = copy.deepcopy(original.state_dict())  # torch would share its tensors
        if way == "file":
            buffer = io.BytesIO()
            torch.save(saved, buffer)
            saved = torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)
        other.load_state_dict(saved)
        assert other.param_groups[0].get("param_names") == (["a", "b"] if named else None)
    first.train(original, 4)
    second.train(other, 4)
    assert equal(first, second)
    if name == "SBS":
        assert same_state(original, other)


@every_input
def test_an_older_state_dict_can_be_loaded(name: str, kwargs: dict) -> None:
    task = Task()
    optimizer = task.make(name, {**kwargs, "lr": 0.01, "maximize": False})
    task.train(optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    for group in saved["param_groups"]:
        for flag in INFOS[name].not_og_supported_flags:
            group.pop(flag, None)
    optimizer.load_state_dict(saved)
    before = task.loss()
    task.train(optimizer, 10)
    assert task.loss() < before


@both
def test_groups_added_later_are_saved_and_loaded(name: str) -> None:
    task = Task()
    optimizer = task.make(name, {"momentum": 0.9}, task.params[:1])
    optimizer.add_param_group({"params": task.params[1], "lr": 0.01})
    task.train(optimizer, 3)
    twin, saved = copy.deepcopy(task), copy.deepcopy(optimizer.state_dict())
    other = twin.make(name, {}, twin.params[:1])
    with pytest.raises(ValueError, match="groups"):
        other.load_state_dict(saved)
    other.add_param_group({"params": twin.params[1]})
    other.load_state_dict(saved)
    task.train(optimizer, 3)
    twin.train(other, 3)
    assert equal(task, twin)


@both
def test_its_text_shows_every_option_of_every_group(name: str) -> None:
    task = Task()
    weight, bias = task.params
    optimizer = task.make(name, {}, [{"params": weight, "lr": 0.25}, {"params": bias}])
    text = repr(optimizer)
    assert f"{name} (" in text
    for number, group in enumerate(optimizer.param_groups):
        assert f"Parameter Group {number}" in text
        assert all(f"{key}: {group[key]}\n" in text for key in group if key != "params")


# Hooks.


@both
def test_step_hooks_of_the_optimizer_and_of_all_optimizers(name: str) -> None:
    task, seen = Task(), []

    def note(word: str) -> Callable:
        return lambda optimizer, args, kwargs: seen.append((word, optimizer.state_dict()["state"]))

    optimizer = task.make(name, {"momentum": 0.9})
    handles = [
        register_optimizer_step_pre_hook(note("all before")),
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
        register_optimizer_step_post_hook(note("all after")),
    ]
    try:
        task.train(optimizer, 1)
    finally:
        for handle in handles:
            handle.remove()
    task.train(optimizer, 1)
    assert [word for word, _ in seen] == ["all before", "before", "after", "all after"]
    assert [bool(state) for _, state in seen] == [False, False, True, True]


@both
def test_state_dict_hooks(name: str) -> None:
    task, seen = Task(), []
    optimizer = task.make(name, {"momentum": 0.9})
    task.train(optimizer, 2)
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("before"))
    optimizer.register_state_dict_post_hook(lambda o, saved: {**saved, "note": 3})
    optimizer.register_state_dict_post_hook(lambda o, s: seen.append("first"), prepend=True)
    saved = optimizer.state_dict()
    assert saved["note"] == 3
    assert seen == ["before", "first"]

    def change(_: Optimizer, given: dict) -> dict:
        return {**given, "param_groups": [{**given["param_groups"][0], "lr": 0.75}]}

    optimizer.register_load_state_dict_pre_hook(change)
    optimizer.register_load_state_dict_post_hook(
        lambda o: seen.append(o.param_groups[0]["lr"]), prepend=True
    )
    optimizer.load_state_dict(saved)
    assert seen == ["before", "first", 0.75]


@both
def test_the_profiler_sees_a_step_once(name: str) -> None:
    task = Task()
    optimizer = task.make(name, {})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        task.train(optimizer, 1)
    names = [event.name for event in profile.events() if event.name.startswith("Optimizer.step")]
    assert names == [f"Optimizer.step#{name}.step"]


# The scaler of mixed precision.


@both
def test_a_fused_step_does_not_count_if_found_inf_says_so(name: str) -> None:
    task, same = Task(), Task()
    optimizer = task.make(name, {"momentum": 0.9, "fused": True})
    assert optimizer._step_supports_amp_scaling
    optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(1.0)
    task.train(optimizer, 2)
    assert equal(task, same)


@both
def test_a_fused_step_divides_gradients_by_grad_scale(name: str) -> None:
    scaled, plain = Task(), Task()
    one, other = (task.make(name, {"momentum": 0.9, "fused": True}) for task in (scaled, plain))
    for _ in range(3):
        for task, scale in ((scaled, 8.0), (plain, 1.0)):
            for parameter in task.params:
                parameter.grad = None
            (scale * task.loss()).backward()
        one.grad_scale, one.found_inf = torch.tensor(8.0), torch.tensor(0.0)
        one.step()
        other.step()
    assert equal(scaled, plain)


def test_a_tiny_gradient_of_half_precision_is_unscaled_in_float32() -> None:
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float16))
    weight.grad = torch.full((3,), 2.0**-14, dtype=torch.float16)
    optimizer = SBS([weight], lr=2.0**10, probability=1.0, fused=False)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0**16), torch.tensor(0.0)
    optimizer.step()
    assert weight.tolist() == [-(2.0**-20)] * 3  # 2**-30, the gradient, is 0 in float16


@every_input
def test_a_scaled_loss_gives_the_same_weights(name: str, kwargs: dict) -> None:
    scaled, plain = Task(), Task()
    one, other = (task.make(name, kwargs) for task in (scaled, plain))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
    for _ in range(5):
        one.zero_grad()
        scaler.scale(scaled.loss()).backward()
        scaler.step(one)
        scaler.update()
    plain.train(other, 5)
    assert scaler.get_scale() > 2.0**4
    assert close(scaled, plain)
