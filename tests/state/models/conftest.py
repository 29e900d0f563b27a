"""`pytest tests/state/models --hypothesis-profile=soak` runs many times as long."""

from hypothesis import settings

settings.register_profile("soak", max_examples=5_000, stateful_step_count=100, deadline=None)
