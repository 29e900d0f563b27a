"""How long the state machines of these tests run: as long as the hypothesis profile asks for (`make soak`)."""

from hypothesis import settings

_USUAL_EXAMPLES, _USUAL_STEPS = 100, 50


def of_length(examples: int, steps: int) -> settings:
    """So many examples of so many steps in the usual profile, and more in one that asks for more."""
    profile = settings.default
    return settings(
        max_examples=max(1, examples * profile.max_examples // _USUAL_EXAMPLES),
        stateful_step_count=max(1, steps * profile.stateful_step_count // _USUAL_STEPS),
        deadline=None,
    )
