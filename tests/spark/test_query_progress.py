"""What the listener keeps of queries, for readers in other threads."""

from types import SimpleNamespace

from millpond.spark.inspect.query_progress import KEPT_BATCHES, QueryProgressListener
from millpond.spark.spec.observed_metrics import OBSERVED


def progress(batch, observed=None):
    return SimpleNamespace(
        progress=SimpleNamespace(
            id="7",
            name="counts",
            batchId=batch,
            timestamp="2013-01-01T00:00:00.000Z",
            durationMs={"addBatch": 3, "triggerExecution": 5},
            eventTime={},
            numInputRows=2,
            processedRowsPerSecond=400.0,
            observedMetrics=observed,
        )
    )


def test_the_newest_batches_of_a_query_are_kept():
    listener = QueryProgressListener()
    for number in range(KEPT_BATCHES + 3):
        listener.onQueryProgress(progress(number))
    (query,) = listener.queries()
    assert [batch.batch for batch in query.batches] == list(range(3, KEPT_BATCHES + 3))
    assert query.input_rows == 2 * (KEPT_BATCHES + 3)


def test_what_a_reader_goes_through_does_not_change_under_it_when_a_batch_comes():
    listener = QueryProgressListener()
    row = SimpleNamespace(asDict=lambda *_: {}, __getitem__=lambda *_: 0)
    listener.onQueryProgress(progress(0))
    (query,) = listener.queries()
    batches, observed = iter(query.batches), query.observed
    listener.onQueryProgress(progress(1, {f"{OBSERVED}sums 1": None, "others": row}))
    assert [batch.batch for batch in batches] == [0]
    assert query.observed is not observed
