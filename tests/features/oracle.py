"""The answer by the rule alone: every event asked, for every feature, whether it is in the window."""

from fractions import Fraction

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
LENGTHS = {"m": MINUTE, "h": HOUR, "d": DAY}


def is_in_window(t, q, window):
    if window is None:
        return t < q
    w = int(window[:-1]) * LENGTHS[window[-1]]
    hop = DAY if w >= 12 * DAY else HOUR if w >= 12 * HOUR else 5 * MINUTE if w >= HOUR else MINUTE
    return (q - w) // hop * hop <= t < q


def features(group_by, events, q):
    """`events` are (time_ms, inputs); doubles are added as fractions, and rounded once."""
    answer = {}
    columns = [field.name for field in group_by.inputs]
    for aggregation in group_by.aggregations:
        for name, window in zip(aggregation.feature_names, aggregation.windows, strict=True):
            rows = [inputs for t, inputs in events if is_in_window(t, q, window)]
            if aggregation.column is None:
                answer[name] = len(rows) or None
                continue
            column = columns.index(aggregation.column)
            values = [row[column] for row in rows if row[column] is not None]
            answer[name] = _aggregated(aggregation.operation, values)
    return answer


def _aggregated(operation, values):
    if not values:
        return None
    if operation == "count":
        return len(values)
    if operation == "min":
        return min(values)
    if operation == "max":
        return max(values)
    total = sum(map(Fraction, values))
    if operation == "average":
        return float(total / len(values))
    return float(total) if isinstance(values[0], float) else int(total)
