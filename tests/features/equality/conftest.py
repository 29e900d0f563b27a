"""``--hypothesis-profile=soak``: the cases of these tests are fifty times as many as usual."""

from hypothesis import settings

settings.register_profile("soak", max_examples=5_000, stateful_step_count=100, deadline=None)
