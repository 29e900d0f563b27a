"""A budget is split so that no other split of it hits more, within its rules."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.cache.curves import HitRateCurve, Point, Share, best_split

STEPS = 8


@st.composite
def curves(draw, concave):
    gains = draw(st.lists(st.integers(0, 10), min_size=STEPS, max_size=STEPS))
    if concave:
        gains.sort(reverse=True)
    total, rate, points = max(1, sum(gains)), 0.0, []
    for number, gain in enumerate(gains, 1):
        rate += gain / total
        points.append(Point(number, float(number), min(1.0, rate)))
    return HitRateCurve(tuple(points))


def hits(shares, split):
    return sum(share.hits(split[name]) for name, share in shares.items())


def exhaustive(shares, budget):
    """The oracle: every split into whole steps."""
    splits = product(range(STEPS + 1), repeat=len(shares))
    return max(hits(shares, dict(zip(shares, split, strict=True))) for split in splits if sum(split) <= budget)


@given(
    st.lists(curves(concave=True), min_size=3, max_size=3),
    st.lists(st.integers(1, 50), min_size=3, max_size=3),
    st.integers(1, 24),
)
def test_concave_curves_get_the_best_split(found, requests, budget):
    shares = {str(place): Share(*pair) for place, pair in enumerate(zip(found, requests, strict=True))}
    split = best_split(shares, budget)
    assert sum(split.values()) <= budget + 1e-9
    assert hits(shares, split) == pytest.approx(exhaustive(shares, budget))


@given(st.lists(curves(concave=False), min_size=2, max_size=3), st.integers(1, 24))
def test_any_curves_get_a_split_within_the_budget_that_is_not_far_from_the_best(found, budget):
    shares = {str(place): Share(curve, 10) for place, curve in enumerate(found)}
    split = best_split(shares, budget)
    assert sum(split.values()) <= budget + 1e-9
    assert hits(shares, split) >= 0.5 * exhaustive(shares, budget) - 1e-9


def test_a_cliff_is_climbed_although_its_foot_brings_nothing():
    cliff = HitRateCurve((Point(9, 9.0, 0.0), Point(10, 10.0, 1.0)))
    slope = HitRateCurve((Point(20, 20.0, 0.4),))
    assert best_split({"cliff": Share(cliff, 100), "slope": Share(slope, 100)}, 15) == {"cliff": 10.0, "slope": 5.0}


def test_a_cliff_out_of_reach_gets_nothing():
    cliff = HitRateCurve((Point(99, 99.0, 0.0), Point(100, 100.0, 1.0)))
    slope = HitRateCurve((Point(20, 20.0, 0.4),))
    assert best_split({"cliff": Share(cliff, 100), "slope": Share(slope, 1)}, 15) == {"cliff": 0.0, "slope": 15.0}


def test_a_cache_that_is_asked_more_gets_more():
    curve = HitRateCurve((Point(5, 5.0, 0.5), Point(10, 10.0, 0.6)))
    assert best_split({"busy": Share(curve, 100), "idle": Share(curve, 1)}, 10) == {"busy": 10.0, "idle": 0.0}


def test_each_keeps_its_least_and_none_gets_more_than_its_most():
    curve = HitRateCurve((Point(5, 5.0, 0.5), Point(10, 10.0, 0.9)))
    shares = {"one": Share(curve, 100, most=6.0), "other": Share(curve, 1, least=2.0)}
    assert best_split(shares, 9) == {"one": 6.0, "other": 3.0}
