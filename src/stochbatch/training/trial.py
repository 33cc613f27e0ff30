"""A trial: everything that decides the outcome of one training."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError

from stochbatch.registry import DATASETS, METHODS, NETWORKS, SCHEDULES, check_settings, hint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Count = Annotated[int, Field(ge=1, strict=True)]
Value = bool | int | float | str | None | list[float]


NULL = "null"
"""Stands for None in TOML, which has no such value."""


LATER = ("evaluate_every", "sync_bn", "norm_init", "validation")
"""Fields that were added later."""


class TrialError(ValueError):
    """A trial that is not valid: one line that says what was given and what is allowed."""


class Trial(BaseModel):
    """One training of one network by one method; frozen, and the same trial has the same hash.

    Settings that are not given are filled in, so that a trial says all about itself even if
    a default changes later.

    Example:
        >>> from stochbatch.training import Trial
        >>> trial = Trial(method="sbs", settings={"lambd": -2}, epochs=30)
        >>> trial.network, trial.settings["lambd"], trial.settings["alpha"]
        ('vgg_tiny', -2.0, 0.1)
        >>> Trial(metod="sbs")
        Traceback (most recent call last):
        ...
        stochbatch.training.trial.TrialError: a trial has no 'metod', did you mean 'method'?
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    dataset: str = Field("digits", description="Data set: see `stochbatch list datasets`.")
    share: float = Field(
        1.0, gt=0, le=1, description="Share of the training set, drawn by the seed."
    )
    network: str = Field(
        "",
        description="Network: see `stochbatch list networks`; by default vgg_tiny for images below "
        "32x32, else vgg11.",
    )
    width: float = Field(1.0, gt=0, description="Factor on the network's widths.")
    method: str = Field("sgd", description="Method: see `stochbatch list methods`.")
    settings: dict[str, Value] = Field(
        default_factory=dict,
        description="Settings of the method: see `stochbatch list methods --settings`.",
    )
    batch_size: Count = Field(128, description="Samples in a batch.")
    lr: float = Field(
        0.1, ge=0, description="Learning rate at the start; by default 0.1, or the method's own."
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum factor.")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty.")
    schedule: str = Field(
        "sigmoid",
        description="Learning rates, one per epoch: see `stochbatch list schedules`; by default "
        "sigmoid or, without lr, the method's own.",
    )
    schedule_settings: dict[str, Value] = Field(
        default_factory=dict,
        description="Settings of the schedule: see `stochbatch list schedules --settings`.",
    )
    epochs: Count = Field(100, description="Number of epochs.")
    augment: StrictBool = Field(True, description="Crop and flip training images.")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="fp32, or bf16 or fp16 under autocast."
    )
    compile: StrictBool = Field(False, description="Use torch.compile.")
    evaluate_every: Count = Field(
        1,
        description="Epochs between evaluations; the last tenth, whose mean is in tables, is "
        "always evaluated.",
    )
    sync_bn: StrictBool = Field(
        False,
        description="Under torchrun, on GPUs: batch norm over the whole batch, not a rank's slice.",
    )
    norm_init: Literal["ones", "uniform"] = Field(
        "ones",
        description="Where the scales of batch norms start: at 1, or uniform in [0, 1), as in "
        "torch up to version 1.1.",
    )
    validation: StrictInt = Field(
        0,
        ge=0,
        description="Training images to evaluate on in the place of the test images: from those "
        "that the share leaves out, if there are as many, else held out.",
    )
    seed: StrictInt = Field(
        0,
        ge=0,
        lt=1 << 64,
        description="Decides initial weights, subset, order, crops, flips, dropout and coins.",
    )

    def __init__(self, /, **fields: Any) -> None:
        self._read(fields)
        try:
            self._complete()
        except (ValueError, OverflowError) as error:
            raise TrialError(str(error)) from error

    @classmethod
    def stored(cls, fields: Mapping[str, Any]) -> Trial:
        """Return a trial that was complete when it was saved, as its text has it.

        Nothing is filled in or looked up, so its method, network or data set may be missing here.
        """
        for name in cls.model_fields.keys() - LATER:
            if name not in fields:
                raise TrialError(f"a saved trial has every field, and this one has no {name!r}")
        trial = cls.__new__(cls)
        trial._read(fields)
        for name in ("settings", "schedule_settings"):
            _set(trial, name, Settings(getattr(trial, name)))
        return trial

    def _read(self, fields: Mapping[str, Any]) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise TrialError(_one_line(error)) from None

    def _complete(self) -> None:
        """Fill in what is not given, and refuse what cannot be trained."""
        entry = DATASETS[self.dataset]
        if not self.network:
            _set(self, "network", "vgg_tiny" if entry.shape[1] < 32 else "vgg11")
        if ":" in self.network:
            from stochbatch.nets.own_network import named

            _set(self, "network", named(self.network))
        NETWORKS[self.network]
        for name in ("share", "width", "lr", "momentum", "weight_decay"):
            _set(self, name, getattr(self, name) + 0.0)  # -0.0 is 0.0
        method = METHODS[self.method]
        if method.usual_weight_decay is not None and "weight_decay" not in self.model_fields_set:
            _set(self, "weight_decay", method.usual_weight_decay)
        method.check_settings(self.settings)
        _set(self, "settings", _filled(method.title, *method.without_later(self.settings)))
        defaults = self._take_usual_rate()
        filled = _filled(f"the schedule {self.schedule!r}", defaults, self.schedule_settings)
        if "end_lr" not in self.schedule_settings:
            check_falling(self.lr, filled)
        _set(self, "schedule_settings", filled)
        used = round(self.share * entry.train.count)
        if used < 2:
            raise ValueError(f"share {self.share:g} of {self.dataset} is less than two images")
        if self.validation > max(entry.train.count - used, used // 2):
            raise ValueError(
                f"validation {self.validation} is too many: share {self.share:g} of {self.dataset} "
                f"uses {used:,} of {entry.train.count:,} images, of which half may be held out"
            )
        if method.closure and self.precision == "fp16":
            raise ValueError(
                f"{method.title} takes a closure, which fp16's scaler does not support: use bf16"
            )
        from stochbatch.training.builders import try_out

        try:
            try_out(self)
        except (TypeError, IndexError, ArithmeticError, AssertionError, RuntimeError) as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            raise ValueError(
                f"this network, method or schedule cannot be built: {first}"
            ) from error

    def _take_usual_rate(self) -> dict[str, Any]:
        """Take the rate and the schedule of the method, if no rate is given.

        Return the settings of the schedule, of which an end is as far below the usual rate as it is
        below SGD's.
        """
        method, given = METHODS[self.method], self.model_fields_set
        if method.usual_lr is None or "lr" in given:
            return _defaults(SCHEDULES[self.schedule])
        times = method.usual_lr / self.lr
        _set(self, "lr", method.usual_lr)
        if method.usual_schedule and not given & {"schedule", "schedule_settings"}:
            _set(self, "schedule", method.usual_schedule)
        defaults = _defaults(SCHEDULES[self.schedule])
        if "end_lr" in defaults:
            defaults["end_lr"] *= times
        return defaults

    def evaluates(self, epoch: int) -> bool:
        """Return whether there is an evaluation after an epoch, counted from 0."""
        last = self.epochs - last_tenth(self.epochs)
        return epoch >= last or (epoch + 1) % self.evaluate_every == 0

    @property
    def hash(self) -> str:
        """The trial's identity: SHA-256 of its canonical JSON."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def folder(self) -> str:
        """Name of the trial's folder: the first 16 digits of its hash."""
        return self.hash[:16]

    def to_json(self) -> str:
        """Return the canonical JSON: all fields, sorted, without spaces.

        Fields that joined later are left out where they have their default, so that trials
        keep their names.
        """
        fields = {
            name: value
            for name, value in self.model_dump().items()
            if name not in LATER or value != type(self).model_fields[name].default
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def to_toml(self) -> str:
        """Return the trial as TOML, with a comment about each field.

        None is the text ``null``, as TOML has no such value.
        """
        import tomli_w

        texts: list[str] = []
        tables: list[str] = []
        for name, value in self.model_dump().items():
            if isinstance(value, dict):
                value = {key: NULL if one is None else one for key, one in value.items()}
            text = f"# {type(self).model_fields[name].description}\n{tomli_w.dumps({name: value})}"
            (tables if isinstance(value, dict) else texts).append(text)
        return "\n".join(["".join(texts), *tables])

    @classmethod
    def from_text(cls, text: str, form: str) -> Trial:
        """Return the trial that a JSON or TOML text describes."""
        try:
            fields = json.loads(text) if form == "json" else tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise TrialError(f"not valid {form.upper()}: {error}") from None
        if not isinstance(fields, dict):
            raise TrialError(f"a trial must be a table of fields, got {type(fields).__name__}")
        return cls(**fields)

    @classmethod
    def from_file(cls, path: str | Path) -> Trial:
        """Return the trial in a ``.json`` or ``.toml`` file."""
        path = Path(path)
        form = path.suffix.removeprefix(".")
        if form not in ("json", "toml"):
            raise TrialError(f"{path}: a trial is a .json or a .toml file")
        try:
            return cls.from_text(path.read_text(encoding="utf-8"), form)
        except (OSError, UnicodeDecodeError) as error:
            raise TrialError(f"{path} cannot be read: {error}") from None
        except TrialError as error:
            raise TrialError(f"{path}: {error}") from None


def last_tenth(epochs: int) -> int:
    """Return how many epochs are the last 10 % of so many, at least one."""
    return max(1, epochs // 10)


def check_falling(lr: float, schedule_settings: Mapping[str, Any]) -> None:
    """Raise if a schedule ends, by a default, with a higher rate than it begins with."""
    end = schedule_settings.get("end_lr")
    if isinstance(end, int | float) and end > lr:
        raise ValueError(
            f"the rate would rise from lr {lr:g} to the schedule's end_lr {end:g}: set end_lr "
            "too, or take the schedule 'constant'"
        )


def _set(trial: Trial, name: str, value: Any) -> None:
    object.__setattr__(trial, name, value)  # frozen for others, not while it is being made


def _defaults(schedule: Any) -> dict[str, Any]:
    options = inspect.signature(schedule).parameters.values()
    return {option.name: option.default for option in options if option.kind == option.KEYWORD_ONLY}


def _filled(owner: str, defaults: dict[str, Any], given: Mapping[str, Any]) -> Settings:
    """Return all settings, given or default, each in the one form that its default asks for."""
    check_settings(owner, defaults, given)
    return Settings(
        {
            name: _canonical(name, given.get(name, default), default)
            for name, default in sorted(defaults.items())
        }
    )


def _canonical(name: str, value: Any, default: Any) -> Any:
    """Return a setting as JSON has it: one training must not have two names.

    2 and 2.0, -0.0 and 0.0 are the same number; a text is not a truth value.
    """
    if value is inspect.Parameter.empty:
        raise ValueError(f"{name} has no default: set it")
    if default is inspect.Parameter.empty:
        default = None if isinstance(value, str | None) else value
    if isinstance(default, str | None) and isinstance(value, str):
        return None if value == NULL else value
    if value is None and isinstance(default, str | None):
        return None
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError(f"{name} must be true or false, got {value!r}")
        return value
    if isinstance(default, list | tuple):
        if not isinstance(value, list | tuple) or not all(_is_number(part) for part in value):
            raise ValueError(f"{name} must be a list of numbers, got {value!r}")
        return [float(part) + 0.0 for part in value]
    if isinstance(default, str):
        raise ValueError(f"{name} must be a text, got {value!r}")
    if not _is_number(value):
        raise ValueError(f"{name} must be a number, got {value!r}")
    if isinstance(default, int) and float(value).is_integer():
        return int(value)
    return float(value) + 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Settings(dict[str, Any]):
    """Settings of a trial: a dict that cannot be changed."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a trial is frozen: make another one")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse

    def __reduce__(self) -> Any:
        return type(self), (dict(self),)


def _one_line(error: ValidationError) -> str:
    """Return the first thing that is wrong."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"a trial has no {where!r}{hint(where, Trial.model_fields)}"
    if first["loc"][0] in ("settings", "schedule_settings") and len(first["loc"]) > 1:
        # A value may be one of many things; what it is not says little.
        return (
            f"{first['loc'][1]} must be a finite number, a text, true, false, null or a list of "
            f"numbers, got {first['input']!r}"
        )
    what = first["msg"][0].lower() + first["msg"][1:]
    return f"{where.split('.')[0]}: {what}, got {first['input']!r}"


def differences(trials: Sequence[Trial]) -> list[str]:
    """Return what each trial has that others have not, but for its method and its data.

    Settings are compared with those of trials of the same method or schedule.

    Example:
        >>> from stochbatch.training.trial import Trial, differences
        >>> differences([Trial(seed=0), Trial(seed=1), Trial(seed=1, lr=0.2)])
        ['lr=0.1, seed=0', 'lr=0.1, seed=1', 'lr=0.2, seed=1']
    """
    flat: list[dict[tuple[str, str], str]] = []
    for trial in trials:
        fields = trial.model_dump(exclude={"method", "dataset"})
        its = {trial.method: fields.pop("settings")}
        its |= {f"schedule {trial.schedule}": fields.pop("schedule_settings"), "": fields}
        flat.append(
            {(of, name): str(value) for of in its for name, value in sorted(its[of].items())}
        )
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in flat:
        for name, value in one.items():
            values[name].add(value)
    return [
        ", ".join(f"{name[1]}={value}" for name, value in one.items() if len(values[name]) > 1)
        for one in flat
    ]
