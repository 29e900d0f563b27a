"""Keep loaded modules out of garbage collection in Spark's Python workers.

A reused worker collects garbage after each task (`pyspark.daemon`), and visits every object of every loaded module.
With pandas and pyarrow that takes 30 ms, for which the next stage, or the end of the batch, waits. A batch of ten
rows has three such stages.
"""

import gc
import sys

_frozen_modules = 0


def leave_modules_out() -> None:
    """Freeze all present objects, if modules were loaded since the last call: garbage collection then skips them.

    Call it when a task begins. The garbage of the previous task has then been collected, so the present objects are
    there to stay.
    """
    global _frozen_modules  # noqa: PLW0603 - it is the process's
    if len(sys.modules) > _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.freeze()
