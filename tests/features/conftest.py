"""``--hypothesis-profile=soak``: random definitions have fifty times as many cases, and cells get all tries."""

from hypothesis import settings

settings.register_profile("soak", max_examples=5_000, stateful_step_count=100, deadline=None)
