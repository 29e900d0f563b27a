"""An operator with one of each kind of state, which the tests of the harness keep durable."""

from millpond.state.testing.harness import Harness


class Diary:
    """One of each kind of state, and a timer ten ms after a record's time."""

    def open(self, states):
        self.count = states.value("count", int, default=0)
        self.seen = states.list("seen", int)
        self.parities = states.map("parities", str, int)

    def process(self, key, record, context):
        self.count.update(self.count.get() + 1)
        self.seen.append(record)
        self.parities.put("odd" if record % 2 else "even", record)
        if context.at_ms is not None:
            context.event_timers.register(context.at_ms + 10)
        yield key, self.count.get()

    def on_timer(self, key, timer, context):
        yield key, "timer", timer.at_ms


def harness_of(shards=1, **changes):
    return Harness(Diary, key=lambda record: record % 50, key_type=int, shards=shards, **changes)


def state_of(diary):
    return {name: diary.state(name) for name in ("count", "seen", "parities")}
