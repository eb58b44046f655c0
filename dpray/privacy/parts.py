"""Parts of the records, and which of them a record can be in at once.

The named parts are disjoint. A part may be cut further by label: `training records / classes 5, 6`
holds the training records of two classes. The cut is in the name, so ledgers of several runs that
cut the same records differently can still be added up.

Guarantee: with add-or-remove-one neighbours a record is in one named part and has one label, so
it is read by the entries of one group of `shared_by_a_record` and no others. The classes of a part
are a list that is fixed beforehand. A record that is replaced may change its label and then is in
two parts: replace-one neighbours are no case for this.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

EVERY_RECORD = "every record"
TRAINING = "training records"
HOLD_OUT = "hold-out records"

# What a card says of parts that are cut by label, first among what the guarantee rests on.
CONDITION = (
    "Parts of the records are disjoint by label, so a record is charged for its own part alone and "
    "epsilon is that of the costliest part. That holds where a record is added or removed and the "
    "classes of every part are fixed beforehand; a record that changes its label is in two parts "
    "and costs both."
)
_WITHIN = " / "
_CUT = re.compile(rf".+{_WITHIN}classes (?P<classes>\d+(, \d+)*)")


def of_classes(classes: Iterable[int], *, within: str = TRAINING) -> str:
    """The part of `within` whose records have one of these labels."""
    return f"{within}{_WITHIN}classes {', '.join(map(str, classes))}"


def classes_of(part: str) -> tuple[int, ...] | None:
    """The classes a part was cut to, or None where it was not."""
    cut = _CUT.fullmatch(part)
    return tuple(int(word) for word in cut["classes"].split(", ")) if cut else None


def may_share_a_record(one: str, other: str) -> bool:
    if EVERY_RECORD in (one, other):
        return True
    if _named(one) != _named(other):
        return False
    cuts = classes_of(one), classes_of(other)
    return None in cuts or bool(set(cuts[0] or ()) & set(cuts[1] or ()))


def shared_by_a_record(parts: Sequence[str]) -> list[list[int]]:
    """For every kind of record there can be: the places in `parts` that such a record is in.

    A kind is a named part and a label; labels that no part was cut to are one kind together.
    """
    kinds: dict[tuple[str, int | None], None] = {}
    for part in parts:
        if part != EVERY_RECORD:
            kinds.update(dict.fromkeys((_named(part), label) for label in classes_of(part) or ()))
            kinds[_named(part), None] = None
    if not kinds:
        return [list(range(len(parts)))]
    groups = [[i for i, part in enumerate(parts) if _holds(part, *kind)] for kind in kinds]
    return [group for group in groups if group]


def _named(part: str) -> str:
    """The named part that `part` is in; all of it, where the cut is not one by label."""
    return part.partition(_WITHIN)[0]


def _holds(part: str, named: str, label: int | None) -> bool:
    if part == EVERY_RECORD:
        return True
    classes = classes_of(part)
    return _named(part) == named and (classes is None or label in classes)
