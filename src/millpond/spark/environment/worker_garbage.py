"""Garbage collection in Spark's Python workers, which must not look through every module after every task.

A worker that is used again collects garbage after each task (`pyspark.daemon`), and in doing so visits every object
of every module that it has loaded: 30 ms with pandas and pyarrow, for which the next stage, or the end of the
batch, waits. A batch of ten rows has three such stages.
"""

import gc
import sys

_frozen_modules = 0


def leave_modules_out() -> None:
    """Have garbage collection pass over all that is there now, if more modules are loaded than when it last did.

    To be called when a task begins: what the task before it left has been collected by then, so that what is there
    now is there to stay.
    """
    global _frozen_modules  # noqa: PLW0603 - it is the process's
    if len(sys.modules) > _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.freeze()
