"""The durable ledger: pay first, then look. It refuses, and never overspends.

A file of JSON lines, each with the hash of the one before it. A line counts once it is whole
and on the disk; only then does `pay` return, so a line torn by a crash was never acted on and
is dropped. `ledger.head` is written after each line and before the data are read: a ledger
that lacks what the head names was cut after the fact, and is refused.

Entries name the part of the records they read: `parts.py` says which of them a record can be
in at once. Only those add up: epsilon of the ledger is that of the costliest kind of record.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dp_accounting as dp

from dpray.errors import BudgetExceeded, CannotResume, LedgerDamaged
from dpray.privacy.accounting import Adjacency, Budget, Cost, cost_of
from dpray.privacy.events import (
    describe,
    event_from_json,
    event_to_json,
    noise_multiplier_of,
)
from dpray.privacy.parts import (
    EVERY_RECORD,
    HOLD_OUT,
    TRAINING,
    may_share_a_record,
    shared_by_a_record,
)
from dpray.privacy.planning import calibrate
from dpray.privacy.queries import PaidQuery, Q, Together
from dpray.storage import clear_errors, write_whole

__all__ = ["EVERY_RECORD", "HOLD_OUT", "TRAINING", "Entry", "Ledger", "alone", "ledger_from_json"]


def alone() -> None:
    """There is nobody to wait for."""


@dataclass(frozen=True)
class Entry:
    name: str
    part: str
    steps: int
    event: dp.DpEvent
    bound: float | None = None


@dataclass
class Ledger:
    """The gate in front of the private data."""

    budget: Budget
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    entries: list[Entry] = field(default_factory=list)
    path: Path | None = None  # None: in memory, for tests and for ranks that do not write
    head: str = ""
    header: dict[str, Any] = field(default_factory=dict)
    heads: list[str] = field(default_factory=list)  # of every line: what a checkpoint may name
    asked: set[str] = field(default_factory=set)  # queries handed out by this process
    # Of N workers one writes; none may look before the charge is on that one's disk.
    wait_for_all: Callable[[], None] = alone

    @classmethod
    def create(
        cls, path: Path, budget: Budget, *, subject: dict[str, str], adjacency: Adjacency
    ) -> Ledger:
        """A new ledger file. `subject` binds it to its data and settings, by keyed digests."""
        header = {
            "ledger": 1,
            "subject": subject,
            # JSON has no infinity: null stands for a run whose noise, not epsilon, was fixed.
            "epsilon": budget.epsilon if math.isfinite(budget.epsilon) else None,
            "delta": budget.delta,
            "adjacency": adjacency.value,
        }
        line, head = _chain("", header)
        with clear_errors(path):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        write_whole(_head_path(path), head.encode())
        return cls(budget, adjacency, path=path, head=head, header=header, heads=[head])

    @classmethod
    def open(cls, path: Path, *, subject: dict[str, str]) -> Ledger:
        """Reads a ledger back, checking every hash. Drops a torn last line, if never acted on."""
        if not path.exists():
            raise LedgerDamaged(f"there is no ledger at {path}")
        content = path.read_bytes()
        lines = content.split(b"\n")
        torn = lines.pop()  # empty where the file ends as it should
        if torn:
            with clear_errors(path), open(path, "r+b") as file:
                file.truncate(len(content) - len(torn))
                os.fsync(file.fileno())
        values, hashes, head = [], [], ""
        for number, line in enumerate(lines, 1):
            value, head = _read_line(line, head, f"{path} line {number}")
            values.append(value)
            hashes.append(head)
        if not values:
            raise LedgerDamaged(f"{path} is empty: its first line is missing")
        acted_on = _head_path(path).read_text() if _head_path(path).exists() else ""
        if acted_on not in hashes:
            raise LedgerDamaged(
                f"{path} lacks a line that was acted on: it was cut or replaced after the fact"
            )
        header, *records = values
        for what, digest in subject.items():
            if header.get("subject", {}).get(what) != digest:
                raise CannotResume(
                    f"the {what} changed since the ledger {path.name} was opened: "
                    "its budget was charged for others; start a new run"
                )
        ledger = cls(
            Budget(math.inf if header["epsilon"] is None else header["epsilon"], header["delta"]),
            Adjacency(header["adjacency"]),
            [_entry_from_json(record) for record in records],
            path,
            head,
            header,
            hashes,
        )
        ledger._mark_acted_on()
        return ledger

    def cost(self, extra: Entry | None = None) -> Cost:
        """What the entries cost together: those that read the costliest kind of record."""
        entries = [*self.entries, extra] if extra else self.entries
        if self.adjacency is Adjacency.REPLACE:
            # A replaced record may move from one part to another: both change.
            return cost_of([e.event for e in entries], self.budget.delta, self.adjacency)
        groups = shared_by_a_record([e.part for e in entries])
        costs = [
            cost_of([entries[i].event for i in group], self.budget.delta, self.adjacency)
            for group in groups
        ]
        return max(costs, key=lambda cost: cost.epsilon)

    @property
    def epsilon(self) -> float:
        return self.cost().epsilon

    def calibrate(self, make_query: Callable[[float], Q], *, part: str = TRAINING) -> Q:
        """The least noisy query that what is left of the budget affords for this part.

        A query that was paid already, before a crash, comes back with the noise it was paid at.
        """
        name = make_query(1.0).name
        for entry in self.entries:
            if entry.name == name:
                return make_query(noise_multiplier_of(entry.event))
        spent = self._spent(part, self.entries)
        return calibrate(make_query, self.budget, spent=spent, adjacency=self.adjacency)

    def calibrate_together(
        self, make_queries: Callable[[float], Sequence[Q]], *, part: str = TRAINING
    ) -> list[Q]:
        """Several queries that share what is left: `make_queries` spreads one noise level.

        Guarantee: paid one after the other they cost at most the budget, also after a crash
        between two payments: what was paid comes back with the noise it was paid at.
        """
        queries: Sequence[Q] = make_queries(1.0)
        names = [query.name for query in queries]
        paid = {e.name: noise_multiplier_of(e.event) for e in self.entries if e.name in names}
        if len(paid) < len(names):
            others = [e for e in self.entries if e.name not in names]
            queries = calibrate(
                lambda noise: Together(tuple(make_queries(noise))),
                self.budget,
                spent=self._spent(part, others),
                adjacency=self.adjacency,
            ).queries
        return [
            dataclasses.replace(query, noise_multiplier=paid[query.name])  # type: ignore[type-var]
            if query.name in paid
            else query
            for query in queries
        ]

    def _spent(self, part: str, entries: Sequence[Entry]) -> list[dp.DpEvent]:
        """What a record of `part` may have paid already, so that a query on it adds to that."""
        together = self.adjacency is Adjacency.REPLACE  # see `cost`
        return [e.event for e in entries if together or may_share_a_record(e.part, part)]

    def pay(self, query: Q, *, part: str = TRAINING) -> PaidQuery[Q]:
        """Charges a query for all its steps, or refuses it and leaves no trace.

        Guarantee: when this returns, the charge is on the disk. After a crash, a new process
        that pays for the same query finds the entry and adds nothing: it replays with the same
        key. Within a process a query is handed out once, so no noise is used twice.
        """
        entry = Entry(query.name, part, query.steps, query.event, query.bound)
        if query.name in self.asked:
            raise BudgetExceeded(f"{query.name!r} was paid and asked already by this process")
        for number, known in enumerate(self.entries):
            if known.name == entry.name:
                if _entry_to_json(known) != _entry_to_json(entry):
                    raise LedgerDamaged(
                        f"{query.name!r} was charged as {describe(known.event)}; "
                        f"it cannot go on as {describe(entry.event)}"
                    )
                self.asked.add(query.name)
                self.wait_for_all()
                return PaidQuery(query, number)
        total = self.cost(entry).epsilon
        if not total <= self.budget.epsilon:
            raise BudgetExceeded(
                f"{query.name!r} ({describe(entry.event)}) would bring epsilon to {total:.4g}, "
                f"over the budget {self.budget}; nothing was charged"
            )
        self._append(entry)
        self.asked.add(query.name)
        self.wait_for_all()
        return PaidQuery(query, len(self.entries) - 1)

    def to_json(self) -> dict[str, Any]:
        """The whole ledger, for the card: from it the head can be computed again."""
        entries = [_entry_to_json(entry) for entry in self.entries]
        return {"header": self.header, "entries": entries, "head": self.head}

    def _append(self, entry: Entry) -> None:
        if self.path is not None:
            line, head = _chain(self.head, _entry_to_json(entry))
            # Unbuffered: what was refused must not be tried again when the file is closed.
            with clear_errors(self.path), open(self.path, "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                known = file.read()
                size = len(known)
                if not known.endswith(b"\n") or _last_digest(known) != self.head:
                    raise LedgerDamaged(f"{self.path} was changed by somebody else meanwhile")
                try:
                    while line:
                        line = line[file.write(line) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(size)  # leave no trace of a charge that was refused by the disk
                    raise
            self.head = head
            self.heads.append(head)
            self._mark_acted_on()
        self.entries.append(entry)

    def _mark_acted_on(self) -> None:
        if self.path is not None:
            write_whole(_head_path(self.path), self.head.encode())


def _head_path(path: Path) -> Path:
    return path.with_suffix(".head")


def _last_digest(content: bytes) -> str:
    return content.rstrip(b"\n").rsplit(b"\n", 1)[-1].partition(b" ")[0].decode(errors="replace")


def _chain(previous: str, value: dict[str, Any]) -> tuple[bytes, str]:
    """One line of the file, and its hash, which the next line carries."""
    body = json.dumps({**value, "previous": previous}, sort_keys=True)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f"{digest} {body}\n".encode(), digest


def _read_line(line: bytes, previous: str, where: str) -> tuple[dict[str, Any], str]:
    digest, _, body = line.partition(b" ")
    if hashlib.sha256(body).hexdigest() != digest.decode(errors="replace"):
        raise LedgerDamaged(f"{where} is damaged: its hash does not match")
    value = json.loads(body)
    if value.pop("previous") != previous:
        raise LedgerDamaged(f"{where} does not follow the line before it")
    return value, digest.decode()


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "part": entry.part,
        "steps": entry.steps,
        "event": event_to_json(entry.event),
        "bound": entry.bound,
    }


def _entry_from_json(value: dict[str, Any]) -> Entry:
    try:
        event = event_from_json(value["event"])
        return Entry(value["name"], value["part"], int(value["steps"]), event, value["bound"])
    except KeyError as error:
        raise LedgerDamaged(f"a ledger line lacks {error}") from None


def ledger_from_json(value: dict[str, Any]) -> Ledger:
    """A ledger in memory from a card, with its head computed again from the lines themselves."""
    try:
        header, entries = value["header"], value["entries"]
        head = ""
        for line in (header, *entries):
            _, head = _chain(head, line)
        epsilon = math.inf if header["epsilon"] is None else header["epsilon"]
        return Ledger(
            Budget(epsilon, header["delta"]),
            Adjacency(header["adjacency"]),
            [_entry_from_json(entry) for entry in entries],
            head=head,
            header=header,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerDamaged(f"the ledger on the card cannot be read: {error!r}") from None
