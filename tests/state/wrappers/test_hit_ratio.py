"""The gauge: a share per second, and no look at the clock but when it is asked."""

from millpond.metrics.recorder import MemoryRecorder
from millpond.state.wrappers.lru.hit_ratio import GAUGE, REQUESTS, HitRatio


class Scene:
    def __init__(self):
        self.now_ms, self.hits, self.misses = 5_000, 0, 0
        self.ratio = HitRatio(lambda: (self.hits, self.misses), lambda: self.now_ms)

    def pass_time(self, ms, hits=0, misses=0):
        self.now_ms += ms
        self.hits += hits
        self.misses += misses
        return self.ratio.value()


def test_there_is_no_ratio_before_a_second_with_reads():
    scene = Scene()
    assert scene.pass_time(999, hits=1) is None
    assert Scene().pass_time(5_000) is None


def test_it_is_of_the_reads_since_it_last_looked():
    scene = Scene()
    assert scene.pass_time(1_000, hits=3, misses=1) == 0.75
    assert scene.pass_time(1_000, hits=0, misses=8) == 0.0
    assert scene.pass_time(2_500, hits=5, misses=5) == 0.5


def test_it_stays_for_a_second_and_while_nothing_is_read():
    scene = Scene()
    assert scene.pass_time(1_000, hits=1, misses=1) == 0.5
    assert scene.pass_time(999, hits=100) == 0.5
    assert scene.pass_time(1) == 1.0
    assert scene.pass_time(10_000) == 1.0


def test_a_recorder_hears_each_read_once_and_the_ratio_when_there_is_one():
    scene, recorder = Scene(), MemoryRecorder()
    scene.hits, scene.misses = 3, 1
    scene.ratio.record(recorder)
    scene.ratio.record(recorder)
    assert recorder.total(REQUESTS, result="hit") == 3
    assert recorder.total(REQUESTS, result="miss") == 1
    scene.now_ms += 1_000
    scene.ratio.record(recorder)
    assert recorder.level(GAUGE) == 0.75


def test_a_recorder_that_is_told_when_it_is_due_hears_once_a_second():
    scene, recorder = Scene(), MemoryRecorder()
    scene.hits = 1
    scene.ratio.record_if_due(recorder)
    assert recorder.total(REQUESTS, result="hit") == 0
    scene.now_ms += 1_000
    scene.ratio.record_if_due(recorder)
    scene.misses = 3
    scene.ratio.record_if_due(recorder)
    assert recorder.total(REQUESTS, result="hit") == 1
    assert recorder.total(REQUESTS, result="miss") == 0
    assert recorder.level(GAUGE) == 1.0
