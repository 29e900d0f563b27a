"""Says in a sentence what a Spark session waits for: its queries, its tasks, or free cores.

The information comes from Spark's status tracker, which every driver has, even without Spark's web page.
"""

from typing import TYPE_CHECKING, Any

from millpond.commands.waiting import Wait

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_wait(spark: "SparkSession") -> Wait:
    """Return what a session waits for at present."""
    tasks = _tasks(spark)
    queries = spark.streams.active
    if not queries:
        return tasks
    return Wait("; ".join(query_text(query.name, query.status, query.lastProgress) for query in queries) + _also(tasks))


def query_text(name: str | None, status: dict[str, Any], progress: Any) -> str:
    """Describe a streaming query's last batch, and what it does at present.

    >>> query_text("tiles", {"message": "Waiting for data to arrive"}, {
    ...     "batchId": 7, "numInputRows": 1200, "durationMs": {"triggerExecution": 800}})
    'tiles: batch 7 had 1,200 rows and took 0.8 s; waiting for data to arrive'
    """
    doing = str(status["message"])
    now = f"{doing[:1].lower()}{doing[1:]}"
    before = "" if name is None else f"{name}: "
    if progress is None:
        return f"{before}{now}"
    took = progress["durationMs"].get("triggerExecution", 0) / 1_000
    return f"{before}batch {progress['batchId']} had {progress['numInputRows']:,} rows and took {took:.1f} s; {now}"


def _tasks(spark: "SparkSession") -> Wait:
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(stage) for stage in sorted(tracker.getActiveStageIds())]
    return tasks_wait([stage for stage in found if stage is not None])


def tasks_wait(stages: list[Any]) -> Wait:
    """Describe the tasks of the active stages.

    >>> from pyspark.status import SparkStageInfo
    >>> tasks_wait([SparkStageInfo(3, 0, "parquet", 8, 2, 5, 1)])
    Wait(text='stage 3: 5 of 8 tasks done, 2 run, 1 failed', done=5, of=8)
    >>> tasks_wait([SparkStageInfo(3, 0, "parquet", 8, 0, 5, 0)]).text
    'stage 3: 5 of 8 tasks done, none runs: Spark sends them, or waits for free cores'
    """
    if not stages:
        return Wait("Spark plans, or the driver works")
    done, of = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    runs, failed = sum(stage.numActiveTasks for stage in stages), sum(stage.numFailedTasks for stage in stages)
    named = ", ".join(str(stage.stageId) for stage in stages)
    text = f"stage {named}: {done:,} of {of:,} tasks done, "
    text += f"{runs} run" if runs else "none runs: Spark sends them, or waits for free cores"
    return Wait(text + (f", {failed} failed" if failed else ""), done, of)


def _also(tasks: Wait) -> str:
    return f" ({tasks.text})" if tasks.of else ""
