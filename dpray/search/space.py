"""A search space: for every setting that is searched, where its values come from.

A space is a dict under the name SPACE in a file, `tune_spaces/<method>.py` or the user's own. Its
keys are fields of the method and, where the method asks for noisy gradients of Poisson batches,
`noise_multiplier`: the number of steps then follows from the budget. Draws are independent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np

from dpray import methods
from dpray.errors import BadInput, unknown
from dpray.spec import check_settings

NOISE = "noise_multiplier"  # a key of a space that is no field of a method
FOLDER = Path(__file__).parents[2] / "tune_spaces"
_LEAST_NOISE = 0.01  # as of a run
# Of the way from one end of a range to the other: no whole number where a setting must be one.
_INSIDE = 0.381966


@dataclass(frozen=True)
class Uniform:
    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, log=False)

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.uniform(self.low, self.high))


@dataclass(frozen=True)
class LogUniform:
    low: float
    high: float

    def __post_init__(self) -> None:
        _check_range(self.low, self.high, log=True)

    def draw(self, rng: np.random.Generator) -> float:
        drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(drawn, self.low), self.high)


@dataclass(frozen=True)
class Whole:
    low: int
    high: int
    log: bool = False

    def __post_init__(self) -> None:
        for end in (self.low, self.high):
            if not isinstance(end, int) or isinstance(end, bool):
                raise BadInput(f"{end!r} is not a whole number: whole(low, high) takes two")
        _check_range(self.low, self.high, log=self.log)

    def draw(self, rng: np.random.Generator) -> int:
        if not self.log:
            return int(rng.integers(self.low, self.high, endpoint=True))
        drawn = round(math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5))))
        return min(max(drawn, self.low), self.high)


@dataclass(frozen=True)
class Choice:
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        for value in self.values:
            if not isinstance(value, str | int | float | bool | None):
                raise BadInput(f"{value!r} cannot be chosen: values are text, numbers or none")
        if not self.values or len(set(map(repr, self.values))) < len(self.values):
            raise BadInput(f"choice{self.values!r} must name at least one value, and each once")

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]


Dimension = Uniform | LogUniform | Whole | Choice
Space = Mapping[str, Dimension]
Draw = dict[str, Any]
_KINDS: dict[str, type[Any]] = {
    "uniform": Uniform,
    "log_uniform": LogUniform,
    "whole": Whole,
    "choice": Choice,
}


def uniform(low: float, high: float) -> Uniform:
    return Uniform(low, high)


def log_uniform(low: float, high: float) -> LogUniform:
    """Every factor of two between the ends is as likely as another."""
    return LogUniform(low, high)


def whole(low: int, high: int, log: bool = False) -> Whole:
    """Whole numbers, both ends among them."""
    return Whole(low, high, log)


def choice(*values: Any) -> Choice:
    return Choice(values)


def draw(space: Space, rng: np.random.Generator) -> Draw:
    """One value for every key, each drawn on its own and independently of every other draw."""
    return {name: dimension.draw(rng) for name, dimension in space.items()}


def all_values(dimension: Dimension) -> tuple[Any, ...] | None:
    """What may be drawn, one after the other; None where it is a range of real numbers."""
    if isinstance(dimension, Choice):
        return dimension.values
    return tuple(range(dimension.low, dimension.high + 1)) if isinstance(dimension, Whole) else None


def typical_values(dimension: Dimension) -> tuple[Any, ...]:
    """Every value of a choice; of a range its ends, and a value inside."""
    if isinstance(dimension, Choice):
        return dimension.values
    low, high = dimension.low, dimension.high
    if isinstance(dimension, Whole):
        return low, high
    return low, low + _INSIDE * (high - low), high


def to_optuna(space: Space) -> dict[str, Any]:
    """The same space as distributions of Optuna."""
    from optuna import distributions  # slow to import, and few commands need it

    made: dict[str, Any] = {}
    for name, one in space.items():
        if isinstance(one, Choice):
            made[name] = distributions.CategoricalDistribution(one.values)
        elif isinstance(one, Whole):
            made[name] = distributions.IntDistribution(one.low, one.high, log=one.log)
        else:
            log = isinstance(one, LogUniform)
            made[name] = distributions.FloatDistribution(float(one.low), float(one.high), log=log)
    return made


def check_space(space: Space, method: type[Any]) -> None:
    """Refuses keys that are no fields of the method, and values that are not of their types."""
    if not space:
        raise BadInput(f"the space for {method.name} is empty: name at least one setting")
    fields = {field.name for field in dataclasses.fields(method)}
    takes_noise = takes_a_noise_multiplier(method)
    for name, dimension in space.items():
        if name == NOISE:
            if not takes_noise:
                raise BadInput(
                    f"{method.name} cannot be searched over {NOISE}: its steps do not follow from "
                    "one; leave it out, and the noise follows from the budget"
                )
            for value in typical_values(dimension):
                if not isinstance(value, int | float) or not _LEAST_NOISE <= value < math.inf:
                    raise BadInput(f"{NOISE} {value!r} must be a number, at least {_LEAST_NOISE}")
        elif name not in fields:
            known = fields | ({NOISE} if takes_noise else set())
            raise unknown(f"setting of {method.name} to search over", name, known)
        else:
            for value in typical_values(dimension):
                check_settings({name: value}, method)


def takes_a_noise_multiplier(method: type[Any]) -> bool:
    """Whether it asks for gradients of Poisson batches, and a field says how many."""
    fields = {field.name for field in dataclasses.fields(method)}
    return method.private and "batch_size" in fields and bool(fields & {"steps", "epochs"})


def load_space(method_name: str, path: Path | None = None) -> Space:
    """The space that comes with a method, or the one in the user's own file."""
    method = methods.find(method_name)
    file = FOLDER / f"{method_name.replace('-', '_')}.py" if path is None else path.expanduser()
    if not file.is_file():
        raise BadInput(f"no file {str(file)!r} with a search space; name one that defines SPACE")
    space = getattr(_module(file), "SPACE", None)
    if not isinstance(space, Mapping) or not all(
        isinstance(name, str) and isinstance(one, Dimension) for name, one in space.items()
    ):
        raise BadInput(
            f"{file} must define SPACE, a dict from the names of settings to "
            f"{', '.join(f'{kind}(...)' for kind in _KINDS)} of dpray.search.space"
        )
    check_space(space, method)
    return dict(space)


def _module(file: Path) -> Any:
    spec = spec_from_file_location(f"search_space_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise BadInput(f"{file} is not a Python file; a search space is one that defines SPACE")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BadInput as error:
        raise BadInput(f"{file}: {error}") from None
    except Exception as error:  # the user's own code may fail in any way
        said = " ".join(str(error).split())
        raise BadInput(f"{file} cannot be read: {type(error).__name__}: {said}") from None
    return module


def space_to_json(space: Space) -> dict[str, Any]:
    kinds = {kind: name for name, kind in _KINDS.items()}
    return {
        name: {"kind": kinds[type(one)], **dataclasses.asdict(one)} for name, one in space.items()
    }


def space_from_json(value: Any) -> dict[str, Dimension]:
    try:
        return {name: _from_json(dict(one)) for name, one in value.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the search space cannot be read: {error!r}") from None


def _from_json(value: dict[str, Any]) -> Dimension:
    kind = value.pop("kind")
    made: Dimension
    made = Choice(tuple(value.pop("values"))) if kind == "choice" else _KINDS[kind](**value)
    return made


def _check_range(low: float, high: float, *, log: bool) -> None:
    for end in (low, high):
        if not isinstance(end, int | float) or isinstance(end, bool) or not math.isfinite(end):
            raise BadInput(f"{end!r} is not a finite number: a range goes from one to another")
    if not low < high:
        raise BadInput(f"a range from {low:g} to {high:g} is empty: the first end must be less")
    if log and not low > 0:
        raise BadInput(f"a range from {low:g} cannot be logarithmic: it must start above 0")
