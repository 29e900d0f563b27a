"""What each operation answers, by the plainest code: from (time, value) pairs of edge values.

Sums are fractions, rounded once at the end. Nothing here knows of cells.
"""

from fractions import Fraction


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
    from decimal import Context, Decimal

    return Decimal(int(fraction * 10**scale)).scaleb(-scale, Context(prec=99))


_ANSWERS = {
    "count": lambda values, _, __: len(values),
    "sum": _sum,
    "average": lambda values, _, __: rounded(sum(exact(values)) / len(values)),
    "min": lambda values, _, __: min(values),
    "max": lambda values, _, __: max(values),
}
