"""What a user declares: sources, a GroupBy with its aggregations, a Join of several GroupBys.

A definition is plain, frozen data. It is checked whole when it is made, and all its faults are
reported together, so code that runs later need not check it again. It does not know how it is
computed. Its vocabulary (GroupBy, aggregation, operation, window, Join) is Chronon's.
"""

from millpond.features.definitions.aggregation import Aggregation
from millpond.features.definitions.field import Field
from millpond.features.definitions.group_by import GroupBy
from millpond.features.definitions.join import Join, JoinPart
from millpond.features.definitions.source import EntitySource, EventSource, JoinSource, Source

__all__ = [
    "Aggregation",
    "EntitySource",
    "EventSource",
    "Field",
    "GroupBy",
    "Join",
    "JoinPart",
    "JoinSource",
    "Source",
]
