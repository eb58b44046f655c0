"""`RunSpec`: what to do, as one frozen value that goes to JSON and back.

Settings are checked against the method's own fields, so an unknown name or a wrong type stops
here, with the choices listed, before anything is started. A method may name sets of settings
(presets); they are written out in full when a specification is made.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpray.data.datasets import BUILT_IN
from dpray.data.words import DatasetWord
from dpray.errors import BadInput, unknown
from dpray.privacy.accounting import LARGEST_SENSIBLE_EPSILON, Adjacency, Budget


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    method: str
    dataset: str
    # None: the method adds no noise, or the noise is fixed and epsilon follows from it.
    epsilon: float | None = None
    delta: float = 1e-5
    noise_multiplier: float | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    insist: bool = False  # on an epsilon above 20; the card says so
    # The word of the data that everybody may see, for a method that reads such data.
    public: str | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "noise_multiplier", "seed"):
            value = getattr(self, name)
            if not isinstance(value, int | float | None) or isinstance(value, bool):
                raise BadInput(f"{name} {value!r} is not a number")
        if not isinstance(self.settings, Mapping):
            raise BadInput(f"settings must map names to values, not be {self.settings!r}")
        for name in ("dataset", "public"):
            value = getattr(self, name)
            if name == "public" and value is None:
                continue
            if not isinstance(value, str) or not value:
                raise BadInput(f"{name} {value!r} is not a dataset; give a name or a path as text")
        if self.epsilon is not None:
            if not 0 < self.epsilon < math.inf:
                raise BadInput(f"epsilon {self.epsilon:g} is out of range: it must be above 0")
            if self.epsilon > LARGEST_SENSIBLE_EPSILON and not self.insist:
                raise BadInput(
                    f"epsilon {self.epsilon:g} protects nobody: above "
                    f"{LARGEST_SENSIBLE_EPSILON:g} is refused; if you must, add --insist and "
                    "the card will say so"
                )
        if not 0 < self.delta < 1:
            raise BadInput(f"delta {self.delta:g} is out of range: it must be between 0 and 1")
        if self.noise_multiplier is not None and not 0.01 <= self.noise_multiplier < math.inf:
            raise BadInput(
                f"noise multiplier {self.noise_multiplier:g} is out of range: below 0.01 there is "
                "no privacy to account for; the method sgd adds no noise at all"
            )
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise BadInput(
                "give epsilon or a noise multiplier, not both: one follows from the other"
            )

    @property
    def budget(self) -> Budget:
        """What may be spent: epsilon, or anything at all where the noise was fixed instead."""
        return Budget(self.epsilon if self.epsilon is not None else math.inf, self.delta)

    def to_json(self) -> dict[str, Any]:
        value = {**dataclasses.asdict(self), "adjacency": self.adjacency.value}
        if self.public is None:
            del value["public"]  # as it was before there was public data: digests stay the same
        return value

    @classmethod
    def from_json(cls, value: Any) -> RunSpec:
        if not isinstance(value, dict):
            raise BadInput("a run specification is a JSON object with at least method and dataset")
        known = {f.name for f in dataclasses.fields(cls)}
        for name in value:
            if name not in known:
                raise unknown("field of a run specification", name, known)
        values = dict(value)
        try:
            if "adjacency" in values:
                values["adjacency"] = Adjacency(values["adjacency"])
            return cls(**values)
        except ValueError:
            raise unknown("adjacency", str(values["adjacency"]), list(Adjacency)) from None
        except TypeError as error:
            raise BadInput(f"the run specification is incomplete: {error}") from None

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        try:
            return cls.from_json(json.loads(path.read_text()))
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read the run specification {path}: {error}") from None
        except json.JSONDecodeError as error:
            raise BadInput(f"{path} is not JSON: {error}") from None


def dataset_word(word: str) -> str:
    """A path as an absolute one: workers and a later `resume` start from other folders.

    Classes and a part stay behind it. A built-in name is no path, whatever lies in this folder.
    """
    parsed = DatasetWord.parse(word)
    if parsed.base in BUILT_IN or not os.path.exists(parsed.base):
        return str(parsed)
    return str(dataclasses.replace(parsed, base=str(Path(parsed.base).absolute())))


def choose_preset(method: type[Any], preset: str | None, has_gpu: bool) -> str | None:
    """The preset that was named, else the one the method has for a GPU where there is one."""
    if preset is None:
        return getattr(method, "gpu_preset", None) if has_gpu else None
    presets = getattr(method, "presets", {})
    if not presets:
        raise BadInput(f"{_name(method)} has no presets: leave out preset {preset!r}")
    if preset not in presets:
        raise unknown(f"preset of {_name(method)}", preset, presets)
    return preset


def with_preset(
    settings: Mapping[str, Any], method: type[Any], preset: str | None, has_gpu: bool
) -> dict[str, Any]:
    """Settings on top of those of a preset: what was said outright wins.

    A specification holds the outcome and not the preset's name, so it says all by itself.
    """
    chosen = choose_preset(method, preset, has_gpu)
    if chosen is None:
        return dict(settings)
    return {**method.presets[chosen], **settings}


def parse_settings(pairs: Iterable[str], method: type) -> dict[str, Any]:
    """`name=value` words to a dict of the method's fields, each of its declared type."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise BadInput(f"setting {pair!r} is not of the form name=value")
        settings[name] = text
    return check_settings(settings, method)


def check_settings(settings: Mapping[str, Any], method: type) -> dict[str, Any]:
    """Settings with every value as its field's type, or an error that names the choices."""
    hints = typing.get_type_hints(method)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(method)}
    label = f"setting of {_name(method)}"
    for name in settings:
        if name not in fields:
            raise unknown(label, name, fields)
    return {name: _as_type(name, value, fields[name]) for name, value in settings.items()}


def _name(method: type) -> str:
    return str(getattr(method, "name", method.__name__))


def _as_type(name: str, value: Any, wanted: Any) -> Any:
    options = typing.get_args(wanted) if typing.get_origin(wanted) is types.UnionType else (wanted,)
    if type(None) in options and value in (None, "none", "None"):
        return None
    for option in options:
        if option is type(None):
            continue
        if typing.get_origin(option) is typing.Literal:
            if value not in typing.get_args(option):
                raise unknown(f"value of {name}", str(value), map(str, typing.get_args(option)))
            return value
        converted = _convert(value, option)
        if converted is not None:
            return converted
    kinds = " or ".join(getattr(o, "__name__", str(o)) for o in options if o is not type(None))
    raise BadInput(f"setting {name}={value} is not of its type: expected {kinds}")


def _convert(value: Any, kind: type) -> Any:
    if kind is bool:
        table = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        return value if isinstance(value, bool) else table.get(str(value).lower())
    if isinstance(value, bool):
        return None
    try:
        if kind is int:
            number = float(value)
            return int(number) if number.is_integer() else None
        if kind is float:
            number = float(value)
            return number if math.isfinite(number) else None
    except (TypeError, ValueError, OverflowError):
        return None
    return value if kind is str and isinstance(value, str) else None
