"""What each operation answers, by the plainest code: from (time, value) pairs of edge values.

Sums are fractions, rounded once at the end. Nothing here knows of cells.
"""

from decimal import Context, Decimal, localcontext
from fractions import Fraction

K = 2
"""The ``k`` of every operation that takes one."""

PERCENTILES = (0.0, 0.5, 1.0)


def answer(operation, pairs, type_):
    """`pairs` are (time_ms, value), in any order, without nulls; `type_` is the text of the values' type."""
    values = [value for _, value in pairs]
    if not values:
        return None
    return _ANSWERS[operation](values, pairs, type_)


def shaped_answer(operation, pairs, type_, *, element_wise=False):
    """As `answer`, for columns of arrays and maps; null elements do not count."""
    if type_.startswith("map<"):
        element = type_[:-1].partition(",")[2]
        keys = sorted({key for _, value in pairs for key in value})
        answers = {key: answer(operation, _present((t, v.get(key)) for t, v in pairs), element) for key in keys}
        return {key: value for key, value in answers.items() if value is not None} or None
    if not type_.startswith("array<"):
        return answer(operation, pairs, type_)
    element = type_[len("array<") : -1]
    if not element_wise:
        return answer(operation, _present((t, one) for t, value in pairs for one in value), element)
    length = max((len(value) for _, value in pairs), default=0)
    answers = [
        answer(operation, _present((t, value[n]) for t, value in pairs if n < len(value)), element)
        for n in range(length)
    ]
    while answers and answers[-1] is None:
        answers.pop()
    return answers or None


def bucketed_answer(operation, rows, type_, *, element_wise=False):
    """`rows` are (time_ms, value, bucket), any of the last two None."""
    buckets = sorted({bucket for _, _, bucket in rows if bucket is not None})
    answers = {
        bucket: shaped_answer(
            operation,
            [(t, value) for t, value, own in rows if own == bucket and value is not None],
            type_,
            element_wise=element_wise,
        )
        for bucket in buckets
    }
    return {bucket: value for bucket, value in answers.items() if value is not None} or None


def _present(pairs):
    return [(time, value) for time, value in pairs if value is not None]


def exact(values):
    return [Fraction(value) for value in values]


def _sum(values, _, type_):
    total = sum(exact(values))
    if type_ in ("float", "double"):
        return rounded(total)
    if type_.startswith("decimal"):
        scale = int(type_[:-1].partition(",")[2])
        return _decimal(total, scale)
    return int(total)


def rounded(fraction):
    try:
        return float(fraction)
    except OverflowError:
        return float("inf") if fraction > 0 else float("-inf")


def _decimal(fraction, scale):
    return Decimal(int(fraction * 10**scale)).scaleb(-scale, Context(prec=99))


def _fractions(values, type_):
    return exact(map(int, values) if type_ == "boolean" else values)


def _central_moment(values, power):
    mean = sum(values) / len(values)
    return sum((value - mean) ** power for value in values) / len(values)


def _variance(values, _, type_):
    return rounded(_central_moment(_fractions(values, type_), 2))


def _stddev(values, _, type_):
    return root(_central_moment(_fractions(values, type_), 2))


def root(fraction):
    """The square root to 60 digits, then the nearest double."""
    with localcontext(Context(prec=60, Emax=10**9, Emin=-(10**9))):
        return float((Decimal(fraction.numerator) / Decimal(fraction.denominator)).sqrt())


def _skew(values, _, type_):
    values = _fractions(values, type_)
    spread = _central_moment(values, 2)
    if not spread:
        return None
    third = _central_moment(values, 3)
    size = root(third * third / spread**3)
    return -size if third < 0 else size


def _kurtosis(values, _, type_):
    values = _fractions(values, type_)
    spread = _central_moment(values, 2)
    return rounded(_central_moment(values, 4) / spread**2 - 3) if spread else None


def _by_time(pairs, *, latest):
    ordered = sorted(pairs, key=lambda pair: pair[1])
    return [value for _, value in sorted(ordered, key=lambda pair: pair[0], reverse=latest)]


def _histogram(values, _, __):
    return {value: values.count(value) for value in sorted(set(values))}


def _frequent(values, _, __):
    counts = _histogram(values, None, None)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:K])


def _percentile(values, _, __):
    ordered = sorted(map(float, values))
    return [next(value for rank, value in enumerate(ordered, 1) if rank >= p * len(ordered)) for p in PERCENTILES]


_ANSWERS = {
    "count": lambda values, _, __: len(values),
    "sum": _sum,
    "average": lambda values, _, __: rounded(sum(exact(values)) / len(values)),
    "min": lambda values, _, __: min(values),
    "max": lambda values, _, __: max(values),
    "variance": _variance,
    "stddev": _stddev,
    "skew": _skew,
    "kurtosis": _kurtosis,
    "first": lambda _, pairs, __: _by_time(pairs, latest=False)[0],
    "last": lambda _, pairs, __: _by_time(pairs, latest=True)[0],
    "first_k": lambda _, pairs, __: _by_time(pairs, latest=False)[:K],
    "last_k": lambda _, pairs, __: _by_time(pairs, latest=True)[:K],
    "top_k": lambda values, _, __: sorted(values, reverse=True)[:K],
    "bottom_k": lambda values, _, __: sorted(values)[:K],
    "unique_count": lambda values, _, __: len(set(values)),
    "bounded_unique_count": lambda values, _, __: min(K, len(set(values))),
    "approx_unique_count": lambda values, _, __: len(set(values)),
    "approx_percentile": _percentile,
    "histogram": _histogram,
    "approx_histogram_k": _frequent,
}
