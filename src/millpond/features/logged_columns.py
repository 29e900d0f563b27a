"""The columns of logged answers: the fetcher's log writes them, the training set and the check read them."""

OWN_COLUMNS = ("name", "time_ms", "batch_end_ms", "unavailable")
"""The log's own columns: the target's name, the query time, the batch ends, and the features that were not known."""

CONTEXT_PREFIX = "context_"
"""What the columns of context fields begin with."""


def logged_column(kind: str, name: str) -> str:
    """Return the log's column of a key or a feature; it is none of the log's own columns.

    Args:
        kind: ``"key"`` or ``"feature"``.
        name: the name of the key or feature.

    >>> logged_column("feature", "price_sum"), logged_column("feature", "name"), logged_column("key", "Name")
    ('price_sum', 'feature_name', 'key_Name')
    """
    # Spark does not distinguish upper and lower case.
    return f"{kind}_{name}" if name.lower() in OWN_COLUMNS else name
