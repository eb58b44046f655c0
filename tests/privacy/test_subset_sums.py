"""Sums over drawn subsets: who is drawn, bound, scale, replay, and the way to the card."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.accounting import Adjacency, Budget
from dpray.privacy.card import Card, make_card, verify
from dpray.privacy.ledger import Ledger
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import GaussianSum, PaidQuery
from dpray.privacy.subset_queries import SubsetSums
from dpray.privacy.subset_sums import _clipped_rows_sum, drawn_subsets, noisy_subset_mean
from dpray.world import World

KEY = RunKey.insecure(11)
CLIP, NOISE = 0.5, 1.3


def query(sampling: str = "poisson", **changes: Any) -> SubsetSums:
    per_step = {"poisson": 10.0, "one-of-k": 1, "all-subsets": 40}.get(sampling, 1)
    values: dict[str, Any] = {
        "num_subsets": 40,
        "sampling": sampling,
        "subsets_per_step": per_step,
        "steps": 20,
        "clip_norm": CLIP,
        "noise_multiplier": NOISE,
        "remembers_draws": False,
        "vectors_per_draw": 1,
    }
    return SubsetSums(**values | changes)


def released(
    contributions: Callable[[Tensor], Iterable[Tensor]],
    subsets: Tensor | None = None,
    step: int = 0,
    *,
    dimension: int = 6,
    world: World | None = None,
    **changes: Any,
) -> Tensor:
    asked = query(**changes)
    return noisy_subset_mean(
        contributions,
        torch.arange(asked.num_subsets) if subsets is None else subsets,
        step,
        dimension=dimension,
        paid=PaidQuery(asked, entry=0),
        key=KEY,
        world=world or World(),
    )


def vectors(drawn: Tensor, scale: float = 1.0) -> Tensor:
    """A vector for each subset, some longer than the bound and some shorter."""
    table = torch.randn(40, 6, generator=torch.Generator().manual_seed(3)) * 0.2
    return table[drawn] * scale


def never(drawn: Tensor) -> Iterable[Tensor]:
    raise AssertionError("private records were read")


def test_poisson_draws_each_subset_on_its_own_at_the_rate():
    asked = query(num_subsets=20_000, subsets_per_step=5_000.0)
    everyone = torch.arange(20_000)
    first, second = (drawn_subsets(asked, KEY, step, everyone) for step in (0, 1))
    for drawn in (first, second):
        assert abs(len(drawn) - 5_000) < 5 * math.sqrt(20_000 * 0.25 * 0.75)
    both = len(set(first.tolist()) & set(second.tolist()))
    assert abs(both - 1_250) < 5 * math.sqrt(20_000 / 16)
    assert torch.equal(drawn_subsets(asked, KEY, 0, everyone), first)


def test_one_of_k_draws_one_subset_and_every_one_of_them_alike():
    asked, everyone = query("one-of-k", steps=4_000), torch.arange(40)
    draws = [drawn_subsets(asked, KEY, step, everyone) for step in range(4_000)]
    assert {len(drawn) for drawn in draws} == {1}
    counts = torch.bincount(torch.cat(draws), minlength=40)
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("sampling", ["poisson", "one-of-k", "all-subsets"])
def test_who_is_drawn_does_not_depend_on_how_the_subsets_are_shared(sampling):
    asked = query(sampling)
    for step in range(20):
        whole = drawn_subsets(asked, KEY, step, torch.arange(40))
        for parts in (torch.arange(40).split(7), [torch.arange(39, -1, -1), torch.arange(0)]):
            found = torch.cat([drawn_subsets(asked, KEY, step, part) for part in parts])
            assert sorted(found.tolist()) == whole.tolist()
    other = dataclasses.replace(asked, name="another query")
    if sampling != "all-subsets":
        steps = range(20)
        ours = [drawn_subsets(asked, KEY, s, torch.arange(40)).tolist() for s in steps]
        assert ours != [drawn_subsets(other, KEY, s, torch.arange(40)).tolist() for s in steps]


@pytest.mark.parametrize(
    "subsets",
    [
        torch.tensor([3, 3]),
        torch.tensor([40]),
        torch.tensor([-1]),
        torch.tensor([[1]]),
        torch.tensor([1.0]),
    ],
)
def test_numbers_that_are_not_different_subsets_are_refused(subsets):
    with pytest.raises(BadInput, match="subset numbers"):
        released(never, subsets)


@pytest.mark.parametrize("sampling", ["poisson", "one-of-k", "all-subsets"])
def test_the_release_is_the_clipped_sum_and_noise_over_the_expected_number(sampling):
    asked = query(sampling)
    got = released(lambda drawn: [vectors(drawn)], step=2, sampling=sampling)
    raw = vectors(drawn_subsets(asked, KEY, 2, torch.arange(40))).double()
    clipped = sum(row * min(1.0, CLIP / float(row.norm())) for row in raw)
    noise = KEY.normals("subset gradients/noise", 2, 6) * NOISE * CLIP
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, (clipped + noise) / asked.expected_subsets)


def test_rows_in_pieces_release_what_one_matrix_releases_and_a_replay_is_the_same():
    whole = released(lambda drawn: [vectors(drawn)])
    again = released(lambda drawn: [vectors(drawn)])
    pieces = released(lambda drawn: (vectors(part) for part in drawn.split(3)))
    assert torch.equal(whole, again)
    torch.testing.assert_close(whole, pieces)
    assert not torch.allclose(whole, released(lambda drawn: [vectors(drawn)], step=1))


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e4, 1e19, 1e30, 1e38, math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_row_of_any_size_stays_within_the_bound(scale, dtype):
    rows = torch.full((1, 50), 1.0, dtype=dtype) * scale
    clipped = _clipped_rows_sum(rows, CLIP)
    assert float(clipped.norm()) <= CLIP * (1 + 1e-6)
    if not math.isfinite(scale):
        assert torch.equal(clipped, torch.zeros(50, dtype=torch.float64))
    elif 1.0 <= scale <= 1e19:
        assert float(clipped.norm()) == pytest.approx(CLIP, rel=1e-9)


@pytest.mark.parametrize("attack", [1e30, math.nan, math.inf, -math.inf])
def test_one_subset_moves_the_release_by_twice_the_bound_at_most(attack):
    def attacked(drawn: Tensor) -> Iterable[Tensor]:
        rows = vectors(drawn)
        rows[drawn == 7] = attack
        return [rows]

    honest = lambda drawn: [vectors(drawn)]  # noqa: E731
    one, other = (released(c, sampling="all-subsets") * 40 for c in (honest, attacked))
    assert 0 < float((one - other).norm()) <= 2 * CLIP * (1 + 1e-6)


def noise_of(noise_multiplier: float) -> Tensor:
    """What is released where no subset contributes anything, in units of the promised noise."""
    quiet = released(lambda drawn: [], dimension=200_000, noise_multiplier=noise_multiplier)
    return quiet * 10.0 / (NOISE * CLIP)


def test_the_noise_has_the_promised_scale_and_shape():
    noise = noise_of(NOISE)
    assert abs(float(noise.std()) - 1.0) < 0.008
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("wrong", [0.5, 0.98, 1.02])
def test_a_wrong_scale_of_noise_is_noticed(wrong):
    assert abs(float(noise_of(NOISE * wrong).std()) - 1.0) > 0.008


def test_a_step_that_draws_nobody_releases_noise_alone():
    seldom = {"subsets_per_step": 1e-9, "step": 3}
    got = released(lambda drawn: [vectors(drawn)], **seldom)
    noise = KEY.normals("subset gradients/noise", 3, 6) * NOISE * CLIP
    torch.testing.assert_close(got, noise / 1e-9)


def test_an_empty_subset_may_be_left_out_and_none_may_come_twice():
    fewer = released(lambda drawn: [vectors(drawn[1:])])
    zero = released(lambda drawn: [vectors(drawn) * (drawn != drawn[0])[:, None]])
    torch.testing.assert_close(fewer, zero)
    for twice in (
        lambda drawn: [vectors(torch.cat([drawn, drawn[:1]]))],
        lambda drawn: [vectors(drawn), vectors(drawn[:1])],
    ):
        with pytest.raises(BadInput, match="contributes twice breaks the bound"):
            released(twice)


@pytest.mark.parametrize("shape", [(), (6,), (1, 5), (1, 6, 1)])
def test_contributions_of_another_shape_are_refused(shape):
    with pytest.raises(BadInput, match="6 columns"):
        released(lambda drawn: [torch.zeros(shape)])


def test_what_was_not_paid_for_is_refused_before_a_record_is_read():
    with pytest.raises(BudgetExceeded, match="step 20 of 'subset gradients' was not paid for"):
        released(never, step=20)
    with pytest.raises(BadInput, match="gives away 1"):
        released(never, vectors_per_draw=2)
    paid = PaidQuery(query(), entry=0)
    for refused in (False, True):
        call = lambda: noisy_subset_mean(  # noqa: E731
            lambda drawn: [], torch.arange(40), 0, dimension=6, paid=paid, key=KEY
        )
        if refused:
            with pytest.raises(BudgetExceeded, match="asked already"):
                call()
        else:
            call()


@dataclass
class Table:
    """Where the ranks of one process, a thread each, lay their tensors down."""

    size: int
    values: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.meet = threading.Barrier(self.size, timeout=20)


@dataclass(frozen=True)
class ThreadWorld(World):
    table: Table = field(default_factory=lambda: Table(1))

    def _all(self, value: Tensor) -> list[Tensor]:
        self.table.values[self.rank] = value.clone()
        self.table.meet.wait()
        found = [self.table.values[rank] for rank in range(self.size)]
        self.table.meet.wait()
        return found

    def sum(self, value: Tensor) -> Tensor:
        return torch.stack(self._all(value)).sum(0)

    def share(self, value: Tensor) -> Tensor:
        return self._all(value)[0].clone()


@pytest.mark.parametrize("sampling", ["poisson", "one-of-k", "all-subsets"])
def test_three_ranks_release_what_one_releases_with_noise_once(sampling):
    # The last rank holds no subset and takes part all the same.
    shares = [torch.arange(0, 40, 2), torch.arange(1, 40, 2), torch.arange(0)]
    table, results = Table(3), {}

    def work(rank: int) -> None:
        results[rank] = released(
            lambda drawn: [vectors(drawn)],
            shares[rank],
            sampling=sampling,
            world=ThreadWorld(rank, 3, table),
        )

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = released(lambda drawn: [vectors(drawn)], sampling=sampling)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
    torch.testing.assert_close(results[0], alone)


@pytest.mark.parametrize("remembers", [False, True])
def test_it_is_calibrated_paid_for_resumed_and_verified_like_any_query(tmp_path, remembers):
    subject, path = {"dataset": "d"}, tmp_path / "ledger.jsonl"
    make = lambda noise: query(remembers_draws=remembers, noise_multiplier=noise)  # noqa: E731
    ledger = Ledger.create(path, Budget(2.0, 1e-5), subject=subject, adjacency=Adjacency.ADD_REMOVE)
    ledger.pay(GaussianSum(name="class sizes", noise_multiplier=8.0))
    asked = ledger.calibrate(make)
    ledger.pay(asked)
    assert 1.99 < ledger.epsilon <= 2.0
    again = Ledger.open(path, subject=subject)
    assert again.calibrate(make) == asked
    again.pay(asked)
    assert (again.head, len(again.entries)) == (ledger.head, 2)
    card = make_card(
        run_id="r1",
        method="m",
        dataset="d",
        ledger=again,
        facts=asked.facts(),
        public={},
        num_records=500,
    )
    checked = verify(Card.read(card.write(tmp_path)))
    assert checked.recomputed == pytest.approx(ledger.epsilon, abs=1e-6)
    assert "40 subsets" in card.text() and "20 times (noisy sum of" in card.text()
