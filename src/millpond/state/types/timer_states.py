"""The states that hold timers: per key, a map from expiry in ms to true. There is one for each time domain.

They are states like all others, so timers are in the same deltas and bases and are undone by the same rollbacks. A
backend knows them by name, since it also keeps their order in time.
"""

import pyarrow as pa

from millpond.state.types.descriptor import StateDescriptor, StateKind

TIMERS = StateDescriptor(
    name="$timers",
    kind=StateKind.MAP,
    value_schema=pa.schema([("set", pa.bool_())]),
    map_key_schema=pa.schema([("expiry_ms", pa.int64())]),
)

PROCESSING_TIMERS = StateDescriptor(
    name="$processing_timers",
    kind=TIMERS.kind,
    value_schema=TIMERS.value_schema,
    map_key_schema=TIMERS.map_key_schema,
)

TIMER_STATES = (TIMERS.name, PROCESSING_TIMERS.name)
"""The names of the states that hold timers."""
