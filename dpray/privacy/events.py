"""Events as JSON and back: what a ledger line and a privacy card hold.

An event says what happened; an accountant is an opinion on its cost. Only events listed here
can be written, so a file never asks the reader to guess.
"""

from __future__ import annotations

from typing import Any

import dp_accounting as dp

from dpray.errors import BadInput, LedgerDamaged
from dpray.privacy.subsets import SubsetsDpEvent


def event_to_json(event: dp.DpEvent) -> dict[str, Any]:
    match event:
        case dp.NoOpDpEvent():
            return {"type": "nothing"}
        case dp.NonPrivateDpEvent():
            return {"type": "non-private"}
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return {"type": "gaussian", "noise_multiplier": float(noise)}
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return {
                "type": "poisson-sampled",
                "sample_rate": float(rate),
                "event": event_to_json(inner),
            }
        case SubsetsDpEvent():
            return {
                "type": "subsets",
                "sampling": event.sampling,
                "sample_rate": float(event.sample_rate),
                "noise_multiplier": float(event.noise_multiplier),
                "vectors_per_draw": event.vectors_per_draw,
            }
        case dp.SelfComposedDpEvent(event=inner, count=count):
            return {"type": "repeated", "count": int(count), "event": event_to_json(inner)}
        case dp.ComposedDpEvent(events=inner):
            return {"type": "composed", "events": [event_to_json(e) for e in inner]}
    raise TypeError(f"no JSON form for the event {event!r}")


def event_from_json(value: dict[str, Any]) -> dp.DpEvent:
    try:
        match value["type"]:
            case "nothing":
                return dp.NoOpDpEvent()
            case "non-private":
                return dp.NonPrivateDpEvent()
            case "gaussian":
                return dp.GaussianDpEvent(float(value["noise_multiplier"]))
            case "poisson-sampled":
                inner = event_from_json(value["event"])
                return dp.PoissonSampledDpEvent(float(value["sample_rate"]), inner)
            case "subsets":
                return SubsetsDpEvent(
                    sampling=value["sampling"],
                    sample_rate=float(value["sample_rate"]),
                    noise_multiplier=float(value["noise_multiplier"]),
                    vectors_per_draw=value["vectors_per_draw"],
                )
            case "repeated":
                return dp.SelfComposedDpEvent(event_from_json(value["event"]), int(value["count"]))
            case "composed":
                return dp.ComposedDpEvent([event_from_json(e) for e in value["events"]])
    except (KeyError, TypeError, ValueError, BadInput) as error:
        raise LedgerDamaged(f"an event cannot be read: {error!r} in {str(value)[:200]}") from None
    raise LedgerDamaged(f"an event of an unknown type {value['type']!r}")


def noise_multiplier_of(event: dp.DpEvent) -> float:
    """The noise multiplier of the one noisy sum inside a sampled or repeated event."""
    match event:
        case dp.GaussianDpEvent(noise_multiplier=noise) | SubsetsDpEvent(noise_multiplier=noise):
            return float(noise)
        case dp.PoissonSampledDpEvent(event=inner) | dp.SelfComposedDpEvent(event=inner):
            return noise_multiplier_of(inner)
    raise LedgerDamaged(f"{describe(event)} has no single noise multiplier")


def describe(event: dp.DpEvent) -> str:
    """One readable line for a person: the event in words."""
    match event:
        case dp.NoOpDpEvent():
            return "nothing"
        case dp.NonPrivateDpEvent():
            return "no noise at all (epsilon infinite)"
        case dp.GaussianDpEvent(noise_multiplier=noise):
            return f"Gaussian, noise multiplier {noise:.6g}"
        case dp.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            return f"Poisson sample at rate {rate:.6g} of ({describe(inner)})"
        case SubsetsDpEvent(noise_multiplier=noise, vectors_per_draw=vectors):
            return (
                f"noisy sum of {_drawn(event)}, {vectors} vector{'s' * (vectors > 1)} each, "
                f"noise multiplier {noise:.6g}"
            )
        case dp.SelfComposedDpEvent(event=inner, count=count):
            return f"{count} times ({describe(inner)})"
        case dp.ComposedDpEvent(events=inner):
            return " and ".join(describe(e) for e in inner)
    return repr(event)


def _drawn(event: SubsetsDpEvent) -> str:
    rate = f"{event.sample_rate:.6g}"
    return {
        "poisson": f"subsets, a Poisson sample at rate {rate}",
        "one-of-k": f"one subset, drawn at rate {rate}",
        "every": "every subset",
        "revealed": f"subsets at rate {rate}, their draws taken to be known",
    }[event.sampling]
