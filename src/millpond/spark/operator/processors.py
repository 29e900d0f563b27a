"""Check that an object can run as a processor. The error names a class given for an instance, or the wrong class."""

from typing import Any

from pyspark.sql.streaming import StatefulProcessor

from millpond.errors import OptionError
from millpond.spark.forms.arrow_processor import ArrowStatefulProcessor

_TAKERS = {
    "rows": "transformWithState",
    "pandas": "transformWithStateInPandas",
    "arrow": "transformWithStateInArrow",
    "harness": "ProcessorHarness",
}
_MEND = "Derive it from pyspark.sql.streaming.StatefulProcessor."
_MEND_ARROW = "PySpark's StatefulProcessors run with transformWithState or transformWithStateInPandas."
HARNESS = "ProcessorHarness"
_MEND_HARNESS = f"{_MEND} An operator of millpond.state runs in Harness."


def check_processor(form: str, processor: Any, taker: str = "") -> None:
    """Raise an error unless `processor` is a processor of this form: "rows", "pandas" or "arrow".

    `taker` is the name of the class or method that takes it; empty for the form's method of `keyed`.

    Raises:
        OptionError: it is not; the message says what the taker expects and what it got.
    """
    taken = ArrowStatefulProcessor if form == "arrow" else StatefulProcessor
    if isinstance(processor, taken):
        return
    expected = f"{taker or _TAKERS[form]} takes {'an' if form == 'arrow' else 'a'} {taken.__name__}"
    mend = _MEND_ARROW if form == "arrow" else _MEND_HARNESS if taker == HARNESS else _MEND
    if isinstance(processor, type):
        if issubclass(processor, taken):
            name = processor.__name__
            raise OptionError(f"{expected}, got the class {name} and not an instance of it. Write {name}().")
        raise OptionError(f"{expected}, got the class {processor.__name__}. {mend}")
    missing = [name for name in ("init", "handleInputRows", "close") if not hasattr(processor, name)]
    lacks = f", which has no {' and no '.join(missing)}" if missing and form != "arrow" else ""
    raise OptionError(f"{expected}, got {type(processor).__name__}{lacks}. {mend}")
