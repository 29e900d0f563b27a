"""What type checkers make of `millpond.metrics`."""

from typing import assert_type

from millpond.metrics import NO_METRICS, MemoryRecorder, NullRecorder, PrometheusRecorder, Recorder


def every_recorder_is_one() -> list[Recorder]:
    return [MemoryRecorder(), NullRecorder(), NO_METRICS, PrometheusRecorder()]


def totals_are_numbers(recorder: MemoryRecorder) -> None:
    assert_type(recorder.total("millpond_lookup_requests_total", result="hit"), float)
    assert_type(recorder.level("millpond_bytes"), float | None)


def a_result_is_one_of_a_few_words(recorder: Recorder) -> None:
    recorder.count("millpond_lookup_requests_total", 1, name="planes", result="hit")
    recorder.count("millpond_lookup_requests_total", 1, name="planes", result="found")  # type: ignore[arg-type]
