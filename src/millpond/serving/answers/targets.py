"""What a fetcher serves, by name: resolves a definition or its name to what a request runs.

Place on the data path: the first step of a fetch. Names are resolved once for each set of features, and
the result is remembered.
"""

from collections.abc import Iterable, Mapping, Sequence

from millpond.errors import OptionError
from millpond.features import GroupBy, GroupByPlan, Join, compile_group_by
from millpond.serving.answers.one_join import OneJoin, one_join
from millpond.serving.answers.one_key import OneKey, one_key
from millpond.serving.answers.prepared import Prepared, ResolvedTarget
from millpond.serving.counters import Counters
from millpond.serving.groups.served_group import ServedGroup
from millpond.serving.messages import Target, feature_names
from millpond.suggestions import hint

Definition = GroupByPlan | GroupBy | Join
TargetName = str | GroupBy | Join

_MOST_PREPARED = 10_000
"""How many sets of features are remembered: a caller that invents new ones must not fill the memory."""


class Targets:
    """The GroupBys and Joins that are served; safe to use from several threads.

    Attributes:
        forms: the form of a prepared target that answers single requests, where it has one.

    Args:
        definitions: the GroupBys (or their plans) and Joins, as `by_name` returns them.
        groups: the GroupBys as they are served.
        counters: where fetches are counted.
    """

    __slots__ = ("_counters", "_definitions", "_prepared", "_resolved", "forms")

    def __init__(
        self, definitions: Mapping[str, GroupByPlan | Join], groups: Mapping[str, ServedGroup], counters: Counters
    ) -> None:
        self._counters = counters
        self._definitions = {
            name: one.group_by if isinstance(one, GroupByPlan) else one for name, one in definitions.items()
        }
        self._resolved = {name: ResolvedTarget(one, groups) for name, one in definitions.items()}
        self._prepared: dict[tuple[str, tuple[str, ...] | None], Prepared] = {}
        self.forms: dict[tuple[str, tuple[str, ...] | None], OneKey | OneJoin] = {}

    def known(self) -> dict[str, Target]:
        """Return every GroupBy and Join that can be asked for."""
        return {name: resolved.target for name, resolved in self._resolved.items()}

    @property
    def definitions(self) -> Mapping[str, GroupBy | Join]:
        """The definitions, by name."""
        return self._definitions

    def name(self, target: TargetName) -> str:
        """Return the name of a target.

        Raises:
            OptionError: the target is not served here, or only with another definition.
        """
        if isinstance(target, str):
            name = target
        else:
            if not isinstance(target, GroupBy | Join):
                raise OptionError(
                    f"target is {target!r}; expected the name of a GroupBy or Join, or its definition. The target "
                    f"comes first, then the keys; {hint(target, sorted(self._resolved))}"
                )
            name = target.name
            known = self._definitions.get(name, target)
            if known is not target and known != target:
                raise OptionError(f"{name!r} is served here in another definition than the one asked for")
        if name not in self._resolved:
            raise OptionError(f"no GroupBy or Join {name!r} is served here; {hint(name, sorted(self._resolved))}")
        return name

    def prepare(self, target: TargetName, features: Sequence[str] | None = None) -> Prepared:
        """Resolve a target and the features wanted of it, once for all requests like it.

        Raises:
            OptionError: the target or a feature is not served here.
        """
        name = self.name(target)
        wanted = None if features is None else feature_names(features)
        prepared = self._prepared.get((name, wanted))
        if prepared is None:
            prepared = self._resolved[name].prepare(wanted, self._counters.bound)
            if len(self._prepared) < _MOST_PREPARED:
                self._prepared[name, wanted] = prepared
                form = one_key(prepared, self._counters) or one_join(prepared, self._counters)
                if form is not None:
                    self.forms[name, wanted] = form
        return prepared


def by_name(definitions: Iterable[Definition]) -> tuple[dict[str, GroupByPlan], dict[str, Join]]:
    """Return the plans of all GroupBys, those of Joins included, and the Joins.

    Raises:
        OptionError: something else is among them, or two have one name.
    """
    plans: dict[str, GroupByPlan] = {}
    joins: dict[str, Join] = {}
    for one in definitions:
        if isinstance(one, Join):
            if one.name in plans or joins.setdefault(one.name, one) != one:
                raise OptionError(f"two definitions are named {one.name!r}. A fetcher serves one of each name.")
            for part in one.parts:
                _add(plans, joins, part.group_by)
        elif isinstance(one, GroupBy | GroupByPlan):
            _add(plans, joins, one)
        else:
            raise OptionError(f"a Fetcher takes GroupBys, their plans, and Joins, got {one!r}.")
    return plans, joins


def _add(plans: dict[str, GroupByPlan], joins: Mapping[str, Join], one: GroupBy | GroupByPlan) -> None:
    group_by = one.group_by if isinstance(one, GroupByPlan) else one
    known = plans.get(group_by.name)
    if group_by.name in joins or (known is not None and known.group_by != group_by):
        raise OptionError(f"two definitions are named {group_by.name!r}. A fetcher serves one of each name.")
    if known is None:
        plans[group_by.name] = one if isinstance(one, GroupByPlan) else compile_group_by(one)
