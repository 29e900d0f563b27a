"""Which changes of a state's declaration its stored cells survive."""

from collections.abc import Callable

import pyarrow as pa

from millpond.state.descriptor import StateDescriptor


def migration(old: StateDescriptor, new: StateDescriptor) -> Callable[[pa.Table], pa.Table] | None:  # noqa: ARG001
    """What turns stored rows into rows of the state as it is declared now; None where they are the same."""
    return None
