"""`make soak`: the state machines of these tests run about a hundred times as long as usual."""

from hypothesis import settings

settings.register_profile("soak", max_examples=5_000, stateful_step_count=100, deadline=None)
