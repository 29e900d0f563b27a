"""What is said of a cache follows from its curves."""

import pytest

from millpond.cache.curves import CacheReport, HitRateCurve, Point, advice_on, smallest_size

SMALL_LOOP = HitRateCurve((Point(99, 9_900, 0.0), Point(100, 10_000, 0.9)))
SLOPE = HitRateCurve(tuple(Point(100 * n, 10_000 * n, n / 10) for n in range(1, 10)))
NEVER_AGAIN = HitRateCurve((Point(100, 10_000, 0.0), Point(1_000_000, 100_000_000, 0.001)))


def report(curve, present, *, other=None, policy="lru", requests=10_000):
    curves = {policy: curve}
    if other is not None:
        curves["lru" if policy == "w-tinylfu" else "w-tinylfu"] = other
    return CacheReport("planes", policy, present, None, present, 0, None, requests, 0.0, curves)


def verdicts(*args, **kwargs):
    return [finding.verdict for finding in advice_on(report(*args, **kwargs)).findings]


def test_a_cache_that_more_room_would_let_hit_more_is_too_small():
    assert verdicts(SLOPE, 200) == ["too small"]
    (finding,) = advice_on(report(SLOPE, 200)).findings
    assert finding.text == "Too small: with 890 entries (about 89 kB) 89.0 % would hit instead of 20.0 %."


def test_a_cache_that_holds_what_is_never_asked_for_is_too_large():
    assert verdicts(SMALL_LOOP, 5_000) == ["too large"]


def test_a_cache_of_keys_that_never_come_again_is_useless():
    assert verdicts(NEVER_AGAIN, 1_000) == ["useless"]


def test_a_policy_that_hits_more_is_named():
    better = HitRateCurve((Point(900, 90_000, 0.97),))
    assert verdicts(SLOPE, 900, other=better) == ["other policy"]
    assert verdicts(better, 900, other=SLOPE, policy="w-tinylfu") == ["right"]


def test_a_cache_at_the_end_of_its_curve_suits():
    assert verdicts(SLOPE, 900) == ["right"]


def test_a_few_requests_tell_nothing():
    assert verdicts(NEVER_AGAIN, 1_000, requests=10) == ["few requests"]
    assert verdicts(HitRateCurve(()), 1_000) == ["few requests"]


def test_a_bound_in_bytes_is_compared_in_bytes():
    in_bytes = CacheReport("planes", "lru", None, 20_000, 500, 0, 0, 10_000, 0.0, {"lru": SLOPE})
    assert advice_on(in_bytes).present_rate == pytest.approx(0.2)
    assert "89 kB (about 890 entries)" in advice_on(in_bytes).findings[0].text


def test_the_smallest_size_for_a_hit_rate_lies_between_points():
    assert smallest_size(report(SLOPE, 100), 0.25).entries == pytest.approx(250)
    assert smallest_size(report(SLOPE, 100), 0.95) is None


def test_too_few_requests_are_told_with_the_number_that_is_needed():
    (finding,) = advice_on(report(NEVER_AGAIN, 1_000, requests=10)).findings
    assert finding.text == "Too few requests to tell: 10, of 1,000 that are needed."
