"""Opens the backend that the options name, behind the cache that they choose."""

from pathlib import Path

from millpond.metrics import NO_METRICS, Recorder
from millpond.state.backend.check import checked_backend
from millpond.state.backend.protocols import KeyedStateBackend
from millpond.state.options.operator import StateOptions
from millpond.state.wrappers.choice import CacheChoice, Lru


def open_backend(
    options: StateOptions, key_groups: range, folder: Path, recorder: Recorder = NO_METRICS
) -> KeyedStateBackend:
    """Open the backend of a shard, behind the cache that the options choose.

    Args:
        options: what to open.
        key_groups: of the shard.
        folder: for this backend alone. If the options name a local folder that does not contain it, a folder of the
            same name in the local folder is used instead.
        recorder: counts the cache's hits, see `LruStateCache`, and what the backend reports.
    """
    local_dir = options.local_dir
    if local_dir is not None and not folder.is_relative_to(local_dir):
        folder = local_dir / folder.name
    backend = checked_backend(options.factory(options, key_groups, folder))
    backend.report_to(recorder)
    return backend if options.cache is None else _cached(backend, options.cache, recorder)


def _cached(backend: KeyedStateBackend, choice: CacheChoice, recorder: Recorder) -> KeyedStateBackend:
    if isinstance(choice, Lru):
        from millpond.state.wrappers.lru.backend import LruStateCache

        return LruStateCache(
            backend,
            max_entries=choice.max_entries,
            max_bytes=choice.max_bytes,
            hit_rate_curve=choice.hit_rate_curve,
            recorder=recorder,
        )
    from millpond.state.wrappers.cached_values import CachedValues

    return CachedValues(backend, choice)
