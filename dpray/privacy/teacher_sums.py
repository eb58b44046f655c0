"""Noisy sums of what teachers answer: votes counted by option, or signs added up.

A teacher's answer is bounded here, whatever the teacher is: one vote for a question, or so many
signs. Names say the side of the noise: `raw_` before, `noisy_` after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dpray.errors import BadInput
from dpray.privacy.noise import RunKey
from dpray.privacy.queries import PaidQuery
from dpray.privacy.subset_sums import check_numbers
from dpray.privacy.teacher_queries import TeacherAnswers, TeacherSigns, TeacherVotes
from dpray.world import SOLO, World

A = TypeVar("A", bound=TeacherAnswers)


def noisy_votes(
    raw_choices: Iterable[Tensor],
    teachers: Tensor,
    step: int,
    *,
    paid: PaidQuery[TeacherVotes],
    key: RunKey,
    world: World = SOLO,
) -> Tensor:
    """(questions, options): the noisy numbers of votes, in float64.

    `raw_choices` are matrices of option numbers (int64) in as many pieces as memory wants, a row
    for each of the local `teachers` and a column for each question. Every rank must call; each
    teacher is held by one rank.

    Guarantee: a teacher gives one vote to one option of each question; a number that is no
    option counts for the nearest one. So a changed teacher moves the counts of a question by at
    most the root of two, and the noise on each has `paid.query.noise_std`. It enters once,
    after the sum over ranks. The row of a teacher must depend on the records of that teacher and
    on what was released, on no other record.
    """
    paid.check(step)
    query = paid.query
    raw_counts = torch.zeros(query.questions_per_step, query.num_options, dtype=torch.float64)
    for raw in _of_each_teacher(raw_choices, teachers, query, (query.questions_per_step,)):
        options = raw.long().clamp(0, query.num_options - 1)
        raw_counts += F.one_hot(options, query.num_options).sum(0).double().cpu()
    return _noisy(raw_counts, step, paid, key, world)


def noisy_sign_sums(
    raw_vectors: Iterable[Tensor],
    teachers: Tensor,
    step: int,
    *,
    dimension: int,
    paid: PaidQuery[TeacherSigns],
    key: RunKey,
    world: World = SOLO,
) -> Tensor:
    """(questions, dimension): the noisy sums of the signs of what is largest, in float64.

    `raw_vectors` are tensors of (teachers of a piece, questions, dimension), as in `noisy_votes`.

    Guarantee: of a teacher's vector the signs of the `num_signs` largest coordinates are added
    and nothing else of it, so what it adds has norm at most the root of `num_signs`; one that is
    not finite adds nothing. A changed teacher moves a sum by at most twice that, and the noise on
    each coordinate has `paid.query.noise_std`. Noise and rows are as in `noisy_votes`.
    """
    paid.check(step)
    query = paid.query
    if query.num_signs > dimension:
        raise BadInput(f"{query.num_signs} signs do not fit into {dimension} coordinates")
    form = (query.questions_per_step, dimension)
    raw_sums = torch.zeros(form, dtype=torch.float64)
    for raw in _of_each_teacher(raw_vectors, teachers, query, form):
        raw_sums += top_signs(raw, query.num_signs).sum(0).double().cpu()
    return _noisy(raw_sums, step, paid, key, world)


def top_signs(vectors: Tensor, num_signs: int) -> Tensor:
    """The signs of the largest `num_signs` coordinates of each vector (its last dimension).

    Guarantee: a vector of the result holds at most `num_signs` ones and minus ones and is zero
    elsewhere; of a vector that is not finite all is zero.
    """
    finite = vectors.isfinite().all(-1, keepdim=True)
    vectors = torch.where(finite, vectors, 0.0)
    places = vectors.abs().topk(num_signs, dim=-1).indices
    signs = torch.zeros_like(vectors)
    return signs.scatter_(-1, places, vectors.gather(-1, places).sign())


def _of_each_teacher(
    pieces: Iterable[Tensor], teachers: Tensor, query: TeacherAnswers, form: tuple[int, ...]
) -> Iterator[Tensor]:
    """The same pieces, as long as there is no more than one row for each teacher."""
    check_numbers(teachers, query.num_teachers)
    rows = 0
    for raw in pieces:
        rows += len(raw)
        if tuple(raw.shape[1:]) != form or rows > len(teachers):
            raise BadInput(
                f"answers must have one row of shape {form} for each teacher and no more, for a "
                "teacher that answers twice breaks the bound"
            )
        yield raw.detach()


def _noisy(raw_sum: Tensor, step: int, paid: PaidQuery[A], key: RunKey, world: World) -> Tensor:
    query = paid.query
    total = world.sum(raw_sum)
    if query.noise_multiplier > 0.0 and world.is_first:
        noise = key.normals(f"{query.name}/noise", step, total.numel()).reshape(total.shape)
        total = total + noise * query.noise_std
    return world.share(total)
