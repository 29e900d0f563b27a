"""A traceback shows the user's frames, one line for each run of Millpond's, and the message at the end."""

import pickle
import re
import traceback

import pytest

from millpond import DataError
from millpond.spark.environment.tracebacks import built, fold_own_frames, places
from millpond.spark.host.raised import Raised
from millpond.state.testing.harness import Harness
from millpond.suggestions import suggestion


class Deep:
    """An operator whose error lies below frames of Millpond, and of its own."""

    def open(self, states):
        self._seen = states.value("seen", int)

    def process(self, key, record, context):
        self._fail(key)

    def _fail(self, key):
        raise ValueError(f"no amount for {key}")


class BadNames:
    """Breaks in the middle of code of Millpond's, for which it gives what it must not."""

    def __iter__(self):
        return iter([None])


def _raised(act):
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any
        act()
    return raised.value


def _process(operator):
    with Harness(operator, key=str, key_type=str) as harness:
        harness.process("ann")


def _shown(error):
    return "".join(traceback.format_exception(error))


def test_the_users_frames_stay_and_millponds_are_one_line():
    error = _raised(lambda: _process(Deep))
    before = _shown(error)
    fold_own_frames(error)
    shown = _shown(error)
    assert "state/testing/harness.py" in before
    assert "src/millpond" not in shown
    assert re.search(r"in … \d frames of millpond\n.*in process\n.*\n?.*in _fail", shown, re.DOTALL)
    assert shown.endswith("ValueError: no amount for ann\n")


def test_an_error_that_millpond_raises_on_purpose_ends_at_the_users_call():
    class Wrong(Deep):
        def process(self, key, record, context):
            self._seen.update("many")

    error = _raised(lambda: _process(Wrong))
    fold_own_frames(error)
    assert isinstance(error, DataError)
    lines = _shown(error).splitlines()
    at = next(at for at, line in enumerate(lines) if "self._seen.update" in line)
    assert re.search(r"in … \d+ frames? of millpond", "\n".join(lines[at + 1 :]))
    assert "src/millpond" not in _shown(error)


def test_the_frames_of_an_unexpected_error_within_millpond_stay():
    error = _raised(lambda: suggestion("x", BadNames()))
    fold_own_frames(error)
    assert "suggestions.py" in _shown(error)


def test_the_causes_of_an_error_are_folded_too():
    def act():
        try:
            _process(Deep)
        except ValueError as error:
            raise KeyError("ann") from error

    error = _raised(act)
    fold_own_frames(error)
    assert "src/millpond" not in _shown(error)
    assert "direct cause" in _shown(error)


def test_a_traceback_that_is_built_again_prints_the_same():
    error = _raised(lambda: _process(Deep))
    copy = ValueError(*error.args).with_traceback(built(places(error.__traceback__)))
    assert _shown(copy) == _shown(error)


def test_an_error_arrives_with_its_traceback_its_cause_and_its_notes():
    def act():
        try:
            _process(Deep)
        except ValueError as error:
            error.add_note("while counting")
            raise KeyError("ann") from error

    error = _raised(act)
    assert _shown(Raised.of(error).error()) == _shown(error)


class UnpicklableError(ValueError):
    def __reduce__(self):
        raise pickle.PicklingError("no")


def test_an_error_that_cannot_travel_arrives_as_its_text():
    error = Raised.of(UnpicklableError("too large")).error()
    assert isinstance(error, RuntimeError)
    assert str(error).endswith("UnpicklableError: too large")


def test_a_chain_that_leads_back_to_itself_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    fold_own_frames(first)
    assert Raised.of(first).cause.text == "ValueError: second"
