"""What is counted, and where the counts go."""

from millpond.metrics.recorder import NO_METRICS, RESULTS, MemoryRecorder, NullRecorder, Recorder

__all__ = ["NO_METRICS", "RESULTS", "MemoryRecorder", "NullRecorder", "Recorder"]
