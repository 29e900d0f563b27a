"""A timer that fires nothing by itself: the test moves the clock."""


class Timer:
    """Waits go by a clock of their own; `now_ms` is the wall clock, which can be set."""

    def __init__(self, now_ms=0):
        self.now_ms = now_ms
        self.pending = []

    def later(self, delay_ms, action):
        entry = [self.now_ms + delay_ms, action]
        self.pending.append(entry)
        return lambda: entry in self.pending and self.pending.remove(entry)

    def set_wall_clock(self, now_ms):
        """What is pending still has to wait as long as before."""
        for entry in self.pending:
            entry[0] += now_ms - self.now_ms
        self.now_ms = now_ms

    def move_to(self, now_ms):
        while due := sorted((entry for entry in self.pending if entry[0] <= now_ms), key=lambda entry: entry[0]):
            self.pending.remove(due[0])
            self.now_ms = max(self.now_ms, due[0][0])
            due[0][1]()
        self.now_ms = max(self.now_ms, now_ms)
