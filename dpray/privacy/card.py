"""The privacy card: what a release cost, to whom it promises what, and how to check it.

Written as JSON (to be recomputed) and as one page of text (to be read). The JSON holds the
whole ledger, so `verify` needs nothing but the file: it computes epsilon and the ledger head
again from the events and compares. The card of a release that a paid search chose also holds
what that search was charged with, and its epsilon is that of the whole search.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dp_accounting as dp

from dpray import __version__
from dpray.errors import BadInput, LedgerDamaged
from dpray.privacy.accounting import LARGEST_SENSIBLE_EPSILON, Adjacency, prv_epsilon
from dpray.privacy.events import describe
from dpray.privacy.ledger import Ledger, ledger_from_json
from dpray.privacy.parts import CONDITION, classes_of
from dpray.privacy.searched import Searched
from dpray.storage import write_whole

_TOLERANCE = 1e-6
# Opacus's PRV holds its whole grid in memory; beyond this epsilon it is no use as a check.
_PRV_LIMIT = 50.0

ASSUMPTIONS = (
    "The noise is a float64 Gaussian from AES in counter mode, not a discrete one: an adversary "
    "who sees the exact bits of released weights is outside the proof.",
    "Time, memory and failure patterns of the run are not covered.",
    "The unit is one record: a person with k records has k times the exposure.",
    "But for a search that this card covers, settings are taken as chosen without these records. "
    "The defaults were, by looking at public test sets; whoever chose others by looking at these "
    "records has spent more than is stated.",
)


@dataclass(frozen=True, kw_only=True)
class Card:
    run_id: str
    method: str
    dataset: str
    epsilon: float | None  # None: infinite, no privacy
    delta: float
    adjacency: str
    unit: str = "one record: an image and its label"
    sampling: str
    clip_norm: float | None
    noise_multiplier: float | None
    steps: int | None
    sample_rate: float | None
    epsilon_by_accountant: Mapping[str, float | None]
    accountant_versions: Mapping[str, str]
    treated_as_public: Mapping[str, Any]
    covers: str  # one run, or the run and the search that chose it
    fit_for_release: bool
    reasons_against: tuple[str, ...]
    assumptions: tuple[str, ...] = ASSUMPTIONS
    ledger: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] | None = None  # `Searched`, where a paid search chose the run
    dpray_version: str = __version__

    def to_json(self) -> dict[str, Any]:
        return {"privacy_card": 1, **asdict(self)}

    def write(self, folder: Path) -> Path:
        path = folder / "card.json"
        write_whole(path, (json.dumps(self.to_json(), indent=2) + "\n").encode())
        write_whole(folder / "card.txt", self.text().encode())
        return path

    @classmethod
    def read(cls, path: Path) -> Card:
        try:
            value = json.loads(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read the card {path}: {error}") from None
        except json.JSONDecodeError as error:
            raise BadInput(f"{path} is not JSON: {error}") from None
        if not isinstance(value, dict) or value.pop("privacy_card", None) != 1:
            raise BadInput(f"{path} is not a privacy card of version 1")
        try:
            return cls(**value)
        except TypeError as error:
            raise BadInput(f"{path} is not a whole privacy card: {error}") from None

    def text(self) -> str:
        """One page for a person."""
        epsilon = "infinite: NO PRIVACY" if self.epsilon is None else f"{self.epsilon:.6g}"
        heading = (
            "Epsilon by accountant (each an upper bound; the least of the first three counts)"
            if self.search is None
            else "Epsilon of the whole search by bound (each an upper bound; the least counts)"
        )
        ledger = ledger_from_json(dict(self.ledger))
        lines = [
            f"Privacy card of {self.run_id}",
            "",
            f"  epsilon            {epsilon}",
            f"  delta              {self.delta:g}",
            f"  covers             {self.covers}",
            f"  fit for release    {'yes' if self.fit_for_release else 'NO'}",
            *(f"                     - {reason}" for reason in self.reasons_against),
            "",
            f"  method, dataset    {self.method} on {self.dataset}",
            f"  unit               {self.unit}",
            f"  neighbours         {self.adjacency}",
            f"  sampling           {self.sampling}",
            f"  noise multiplier   {_shown(self.noise_multiplier)}",
            f"  clip norm          {_shown(self.clip_norm)}",
            f"  steps              {_shown(self.steps)}",
            f"  sample rate        {_shown(self.sample_rate)}",
            "",
            *self._of_the_search(ledger),
            heading,
            *(
                f"  {name:<18} {_shown(value)}"
                for name, value in self.epsilon_by_accountant.items()
            ),
            *(f"  {name:<18} version {value}" for name, value in self.accountant_versions.items()),
            "",
            "Where the budget went",
            *(
                f"  {entry.name} on {entry.part}: {describe(entry.event)}"
                for entry in ledger.entries
            ),
            f"  ledger head        {self.ledger['head']}",
            "",
            "Treated as public",
            *(f"  {name}: {value}" for name, value in self.treated_as_public.items()),
            "",
            "What the guarantee rests on, and what it does not cover",
            *(f"  - {text}" for text in self.assumptions),
        ]
        return "\n".join(lines) + "\n"

    def _of_the_search(self, ledger: Ledger) -> list[str]:
        if self.search is None:
            return []
        rows = [
            *Searched.from_json(self.search).lines(),
            ("epsilon of one", f"{_shown(_finite(ledger.epsilon))}: this run and its score alone"),
            ("epsilon of all", f"{_shown(self.epsilon)}: what this card states"),
        ]
        lines = [f"  {name:<18} {value}" for name, value in rows]
        return ["The search that chose it", *lines, ""]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def make_card(
    *,
    run_id: str,
    method: str,
    dataset: str,
    ledger: Ledger,
    facts: Mapping[str, Any],
    public: Mapping[str, Any],
    num_records: int,
    covers: str = "one run",
    for_tests: bool = False,
) -> Card:
    """The card of a finished run. What speaks against releasing it is said, not judged away."""
    cost = ledger.cost()
    against = _too_large(_finite(cost.epsilon))
    if ledger.budget.delta > 1 / num_records:
        against.append(
            f"delta {ledger.budget.delta:g} is above 1/N for {num_records} records: it allows "
            "publishing somebody outright"
        )
    if for_tests:
        against.append("the noise came from an insecure test key: anybody can subtract it")
    by_accountant = {k: _finite(v) for k, v in cost.by_accountant().items()}
    return Card(
        run_id=run_id,
        method=method,
        dataset=dataset,
        epsilon=_finite(cost.epsilon),
        delta=ledger.budget.delta,
        adjacency=ledger.adjacency.value,
        sampling=str(facts.get("sampling", "all records, no sampling")),
        clip_norm=facts.get("clip_norm"),
        noise_multiplier=facts.get("noise_multiplier"),
        steps=facts.get("steps"),
        sample_rate=facts.get("sample_rate"),
        epsilon_by_accountant={**by_accountant, "prv (cross-check)": _cross_check(ledger)},
        accountant_versions={name: version(name) for name in ("dp-accounting", "opacus")},
        treated_as_public={**public, **_public_cuts(ledger)},
        covers=covers,
        fit_for_release=not against,
        reasons_against=tuple(against),
        assumptions=(*_conditions(ledger), *ASSUMPTIONS),
        ledger=ledger.to_json(),
    )


def card_of_search(
    card: Card, *, run_id: str, covers: str, searched: Searched | None, reason: str | None
) -> Card:
    """The card under which a run leaves the search that chose it; `card` is the run's own.

    `searched` is what a paid search was charged with. None stands for a search that read no private
    record, and for one that nobody paid for, of which `reason` says that it must not leave.

    Guarantee: epsilon is that of the whole search, for a run that is covered by one of its trials,
    and any other run is refused. The id of the run gives way to `run_id`: nothing else on a card
    depends on which trial it was, or on how many there were.
    """
    against = list(card.reasons_against)
    card = replace(card, run_id=run_id, covers=covers)
    if searched is not None:
        searched.check_ledger(ledger_from_json(dict(card.ledger)))
        adjacency = Adjacency(card.adjacency)
        bounds = searched.bounds(card.delta, adjacency)
        epsilon = _finite(searched.epsilon(card.delta, adjacency))
        own = _too_large(card.epsilon)
        against = [*_too_large(epsilon), *(text for text in against if text not in own)]
        card = replace(
            card,
            epsilon=epsilon,
            epsilon_by_accountant={name: _finite(value) for name, value in bounds.items()},
            search=searched.to_json(),
            assumptions=tuple(dict.fromkeys((searched.condition, *card.assumptions))),
        )
    if reason is not None and reason not in against:
        against.append(reason)
    fit = card.fit_for_release and not against
    return replace(card, fit_for_release=fit, reasons_against=tuple(against))


def _too_large(epsilon: float | None) -> list[str]:
    """What an epsilon alone says against a release."""
    if epsilon is None:
        return ["no noise was added: epsilon is infinite"]
    if epsilon <= LARGEST_SENSIBLE_EPSILON:
        return []
    limit = f"{LARGEST_SENSIBLE_EPSILON:g}"
    return [f"epsilon {epsilon:.4g} is above {limit}: in effect this protects nobody"]


def _cuts(ledger: Ledger) -> list[tuple[int, ...]]:
    """The classes of every part that was cut by label, in the order of the charges."""
    found = dict.fromkeys(classes_of(entry.part) for entry in ledger.entries)
    return [classes for classes in found if classes is not None]


def _public_cuts(ledger: Ledger) -> dict[str, Any]:
    cuts = _cuts(ledger)
    return {"classes of each part": [list(classes) for classes in cuts]} if cuts else {}


def _conditions(ledger: Ledger) -> tuple[str, ...]:
    """What epsilon rests on, because of how the records were cut into parts."""
    return (CONDITION,) if _cuts(ledger) else ()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _cross_check(ledger: Ledger) -> float | None:
    """Opacus's PRV, where the ledger is one Poisson-sampled Gaussian under add-or-remove."""
    if len(ledger.entries) != 1 or not ledger.cost().epsilon < _PRV_LIMIT:
        return None
    match ledger.entries[0].event:
        case dp.SelfComposedDpEvent(
            event=dp.PoissonSampledDpEvent(
                sampling_probability=rate, event=dp.GaussianDpEvent(noise_multiplier=noise)
            ),
            count=steps,
        ) if ledger.adjacency == "add-or-remove-one":
            return prv_epsilon(
                noise_multiplier=noise, sample_rate=rate, steps=steps, delta=ledger.budget.delta
            )
    return None


def epsilon_at(card: Card, delta: float) -> float:
    """Epsilon of what a card covers at another delta than its own."""
    ledger = ledger_from_json(dict(card.ledger))
    if card.search is not None:
        return Searched.from_json(card.search).epsilon(delta, ledger.adjacency)
    budget = replace(ledger.budget, delta=delta)
    return Ledger(budget, ledger.adjacency, ledger.entries).epsilon


@dataclass(frozen=True)
class Verification:
    stated: float | None
    recomputed: float | None
    ledger_head: str


def verify(card: Card) -> Verification:
    """Computes epsilon and the ledger head again from the card's own events, or refuses."""
    ledger = ledger_from_json(dict(card.ledger))
    if ledger.head != card.ledger["head"]:
        raise LedgerDamaged(
            "the ledger on the card does not lead to its head: lines were added, cut or changed"
        )
    if ledger.budget.delta != card.delta or ledger.adjacency.value != card.adjacency:
        raise LedgerDamaged("the card states another delta or adjacency than its ledger")
    if card.search is None:
        what, bounds = "events cost", ledger.cost().by_accountant()
    else:
        searched = Searched.from_json(card.search)
        searched.check_ledger(ledger)
        if searched.condition not in card.assumptions:
            raise LedgerDamaged("the card leaves out what the epsilon of its search rests on")
        what, bounds = "search costs", searched.bounds(card.delta, ledger.adjacency)
    known = [value for value in bounds.values() if value is not None]
    recomputed = _finite(min(known, default=math.inf))
    off = (card.epsilon is None) != (recomputed is None) or (
        card.epsilon is not None
        and recomputed is not None
        and abs(card.epsilon - recomputed) > _TOLERANCE
    )
    if off:
        raise LedgerDamaged(
            f"the card states epsilon {_shown(card.epsilon)}, its {what} {_shown(recomputed)}"
        )
    _check_headline(card, ledger, bounds)
    return Verification(card.epsilon, recomputed, ledger.head)


def _check_headline(card: Card, ledger: Ledger, bounds: Mapping[str, float | None]) -> None:
    """The other numbers on the card must be those of the ledger, and its verdict must follow."""
    entries = ledger.to_json()["entries"]
    stated = {
        "steps": (card.steps, [entry["steps"] for entry in entries]),
        "clip norm": (card.clip_norm, [entry["bound"] for entry in entries]),
        "noise multiplier": (card.noise_multiplier, _values(entries, "noise_multiplier")),
        "sample rate": (card.sample_rate, [1.0, *_values(entries, "sample_rate")]),
    }
    for name, (value, known) in stated.items():
        if value is not None and value not in known:
            raise LedgerDamaged(
                f"the card states a {name} of {value}, which its ledger does not hold"
            )
    for name, value in bounds.items():
        if _shown(_finite(value)) != _shown(card.epsilon_by_accountant.get(name)):
            raise LedgerDamaged(f"the card states another epsilon by {name} than its events cost")
    if any(condition not in card.assumptions for condition in _conditions(ledger)):
        raise LedgerDamaged("the card leaves out the condition on parts that are cut by label")
    unfit = card.epsilon is None or card.epsilon > LARGEST_SENSIBLE_EPSILON
    if card.fit_for_release and (unfit or card.reasons_against):
        raise LedgerDamaged("the card says it is fit for release, against its own numbers")


def _values(value: Any, name: str) -> list[float]:
    """Every number called `name` anywhere inside the events."""
    if isinstance(value, list):
        return [number for item in value for number in _values(item, name)]
    if isinstance(value, dict):
        own = [value[name]] if name in value else []
        return own + [number for item in value.values() for number in _values(item, name)]
    return []
