"""Steps are queries: as many as iterations, ages and queries make, each at its place."""

from dpray.matching.schedule import Schedule

SCHEDULE = Schedule(iterations=3, outer=2, queries=4, pixel_steps=5, inner=6)


def test_there_are_as_many_steps_as_queries():
    assert SCHEDULE.steps == 24


def test_every_iteration_starts_one_network():
    starts = [step for step in range(24) if SCHEDULE.starts_network(step)]
    assert starts == [0, 8, 16]
    assert [SCHEDULE.iteration(step) for step in starts] == [0, 1, 2]


def test_a_network_is_trained_between_its_ages_and_not_after_the_last():
    assert [step for step in range(24) if SCHEDULE.trains_network(step)] == [3, 11, 19]


def test_a_network_of_one_age_is_never_trained():
    young = Schedule(iterations=3, outer=1, queries=2, pixel_steps=1, inner=6)
    assert not any(young.trains_network(step) for step in range(young.steps))
