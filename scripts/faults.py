"""The fault matrix as data: what may go wrong, what happens then, and which tests show it.

    python scripts/faults.py    writes docs/explanation/faults.md

`tests/test_fault_matrix.py` compares the page with this, and looks for every test.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "faults.md"


@dataclass(frozen=True)
class Fault:
    """A row of the matrix.

    Attributes:
        name: what goes wrong.
        then: what happens.
        tests: that show it, as pytest names them.
    """

    name: str
    then: str
    tests: tuple[str, ...]


_SESSION = "tests/faults/test_session_faults.py::"
_RETRIED = "tests/faults/test_retried_tasks.py::"
_STANDALONE = "tests/faults/test_standalone.py::"
_OUT = "tests/faults/test_running_out.py::"
_STORES = "tests/faults/test_serving_stores.py::"

PROCESSES = [
    Fault(
        "A state host is killed",
        "Its task fails once. The retry starts another host, which restores from the manifest. Other tasks go on.",
        (
            _RETRIED + "test_kill_9_a_state_host",
            "tests/spark/test_keyed.py::test_a_killed_host_is_replaced_and_restored",
        ),
    ),
    Fault(
        "A Python worker is killed",
        "Its changes are undone, and another worker runs the batch again. The host's run for the first worker releases "
        "the shard at its next key.",
        (_RETRIED + "test_kill_9_a_python_worker",),
    ),
    Fault(
        "The driver or an executor is killed",
        "Hosts end with their executor. The batch runs again. An idempotent sink has each row once.",
        (
            _STANDALONE + "test_the_output_is_that_of_an_undisturbed_run",
            _STANDALONE + "test_hosts_are_gone_soon_after_their_executor_their_driver_or_their_application",
        ),
    ),
    Fault(
        "A shard moves to another executor, and back",
        "The new host restores the shard. The token shows that the old host's memory is stale.",
        (_STANDALONE + "test_spark_ran_speculative_copies_of_which_either_attempt_won",),
    ),
    Fault(
        "A process is killed between the host's commit and Spark's",
        "The host goes back to the manifest, and the batch runs again.",
        (
            "tests/spark/operator/test_shard_processor.py::test_a_version_that_spark_did_not_keep_is_taken_back",
            "tests/simulation/test_simulation.py::test_keyed_state_keeps_every_list_whatever_dies_where",
        ),
    ),
    Fault(
        "One batch runs twice, or by two attempts at once",
        "One of them wins. Nothing is counted twice.",
        (
            "tests/spark/test_keyed.py::test_a_batch_that_its_sink_runs_twice_counts_once",
            "tests/spark/runtime/test_slots.py::test_two_attempts_are_never_inside_together",
        ),
    ),
    Fault(
        "A query is stopped and restarted at once",
        "Workers of the first run may still be working. They cannot disturb the second run.",
        (_SESSION + "test_query_stopped_and_restarted_at_once",),
    ),
    Fault(
        "Two queries run on one checkpoint",
        "Spark refuses the second, and the first goes on.",
        (_SESSION + "test_two_queries_on_one_checkpoint",),
    ),
    Fault(
        "A state host hangs",
        "After `host_timeout` it is killed. The task fails with an error that says so, and the next task gets another "
        "host.",
        (
            (
                "tests/spark/test_hosts_that_hang.py::"
                "test_a_host_that_hangs_fails_its_task_with_an_error_that_says_so_and_the_next_one_has_another"
            ),
        ),
    ),
    Fault(
        "A state host leaks",
        "It is replaced between batches, when little memory is left under its limit. No batch fails.",
        (_OUT + "test_a_leaking_host_is_replaced_at_rest_and_no_batch_fails",),
    ),
    Fault(
        "The trigger interval is over a minute, and the next batch takes two attempts",
        "Spark has ended its idle workers. The answers are the same.",
        (_RETRIED + "test_trigger_interval_over_a_minute",),
    ),
]

DATA = [
    Fault(
        "A restart has another `spark.sql.shuffle.partitions`",
        "The query keeps its number of shards, and every key finds its state.",
        ("tests/spark/test_keyed.py::test_a_restart_with_another_number_of_shuffle_partitions_finds_every_key",),
    ),
    Fault(
        "A disk is full, the local one or that of the checkpoint",
        "The batch fails with an error that says so. Durable state stays as it was. The query goes on once space is "
        "free.",
        (
            _OUT + "test_a_local_disk_that_is_full_fails_the_batch_and_is_used_again_when_there_is_room",
            _OUT + "test_a_full_disk_under_sparks_state_store_fails_the_batch_and_is_used_again_when_there_is_room",
        ),
    ),
    Fault(
        "A segment or manifest is missing or altered",
        "The query stops before any output. The error names query, operator, shard, version and segment, and the last "
        "version without the damage.",
        (
            (
                "tests/spark/test_lost_state.py::"
                "test_lost_or_altered_state_stops_the_query_by_name_until_it_is_reset_on_purpose"
            ),
        ),
    ),
    Fault(
        "Someone without the key writes to a sealed checkpoint",
        "A file that was not sealed with the key is refused by name.",
        (
            "tests/state/checkpoint/test_seal.py::test_who_makes_checksums_right_is_found_and_named",
            "tests/spark/test_sealed_state.py::test_a_sealed_query_goes_on_and_is_read_only_with_its_key",
        ),
    ),
    Fault(
        "A savepoint is torn, incomplete or altered",
        "It is refused, with the file's name.",
        ("tests/state/checkpoint/test_savepoint.py::test_every_altered_cut_or_missing_file_is_refused_by_its_name",),
    ),
    Fault(
        "A spill file or a local RocksDB folder is corrupt",
        "The batch fails, the local state is dropped, and the retry restores it from the segments. The other shards of "
        "the host go on.",
        (
            _RETRIED + "test_local_cache_spill_file_or_rocksdb_folder_corrupt",
            (
                "tests/state/spillable/test_disk_faults.py::"
                "test_a_damaged_file_is_met_by_its_own_backend_and_by_no_other"
            ),
            "tests/state/spillable/test_page_seals.py::test_a_flipped_bit_gives_the_right_answer_or_is_found",
            (
                "tests/spark/runtime/test_conversation.py::"
                "test_a_damaged_backend_is_given_up_so_that_the_next_batch_restores"
            ),
        ),
    ),
    Fault(
        "The state part of a checkpoint is deleted, all of it or some files",
        "Spark refuses the query before any output. If Spark's files are whole but Millpond's records in them are "
        'not, the error names `on_lost_state="reset"`.',
        (
            _SESSION + "test_state_part_of_a_checkpoint_deleted",
            "tests/spark/test_keyed.py::test_a_checkpoint_whose_state_was_deleted_is_refused",
        ),
    ),
    Fault(
        "The clock jumps a day back and forward",
        "Timers and TTL follow the batch's time. Nothing expires or fires early.",
        (_SESSION + "test_clock_jumps", _STORES + "test_clocks_that_disagree_by_a_minute_make_no_answer_wrong"),
    ),
    Fault(
        "Rows are later than the watermark",
        'They are dropped by Spark\'s own rule and counted, or kept with `late="keep"`.',
        (
            "tests/spark/test_keyed.py::test_timers_watermarks_and_late_rows_are_those_of_pyspark",
            "tests/spark/test_keyed.py::test_late_rows_are_counted_or_kept",
        ),
    ),
    Fault(
        "A record makes the processor fail",
        "The batch fails with the user's traceback. With `on_error=\"dead-letter\"` the key's call is undone and its "
        "rows are set aside once, with the reason.",
        (
            "tests/spark/test_dead_letters.py::test_a_failed_call_is_undone_and_its_rows_go_aside_once",
            "tests/spark/test_dead_letters.py::test_by_default_the_batch_fails_with_the_users_own_traceback",
        ),
    ),
    Fault(
        "A value is too large",
        "The batch fails before anything of it is written. The error names state, key and size.",
        ("tests/state/checkpoint/test_value_sizes.py::test_a_value_too_large",),
    ),
    Fault(
        "A schema is changed at a restart",
        "A change that would lose data is refused before the first row, with both schemas.",
        (
            (
                "tests/spark/test_restarts.py::"
                "test_a_change_that_would_lose_something_is_refused_with_both_and_harms_nothing"
            ),
        ),
    ),
    Fault(
        "The number of shards is changed",
        "A savepoint moves the state by key group.",
        ("tests/state/testing/test_rescaling.py::test_rescaling_keeps_every_count_and_every_timer",),
    ),
    Fault(
        "State needs more memory than the limit",
        "The `spillable` backend writes to disk. If the state still does not fit, the batch fails, and the error names "
        "the limit.",
        (
            _OUT + "test_a_processor_that_outgrows_its_memory_fails_the_batch_by_name",
            "tests/faults/test_bursts.py::test_a_process_stays_under_its_limit_through_a_burst_of_five_times_that",
        ),
    ),
]

STORES = [
    Fault(
        "A KV store is slow",
        "Each call has a time-out, and calls in flight are bounded.",
        (
            _STORES + "test_threads_that_ask_a_slow_store_are_all_told_so_and_never_get_anothers_answer",
            _STORES + "test_while_a_store_is_known_to_be_slow_one_call_asks_it_and_the_others_fail_at_once",
        ),
    ),
    Fault(
        "A KV store is down when it is read",
        "Reads are retried until their time limit, and then fail. A failed read is never taken for a key without data.",
        (
            _STORES + "test_a_store_that_is_killed_and_comes_back_under_a_fetcher_makes_no_answer_wrong",
            "tests/lookup/test_retry.py::test_a_failure_that_lasts_is_raised_counted_and_not_cached",
        ),
    ),
    Fault(
        "A KV store goes down in the middle of tile writes",
        "The batch fails and runs again. It overwrites the tiles that it had written with the same bytes.",
        ("tests/spark/features/test_stream.py::test_a_kv_store_down_in_the_middle_of_tile_writes",),
    ),
    Fault(
        "A KV store is full",
        "The write fails at once, and stored rows stay.",
        ("tests/kv/test_redis_servers.py::test_a_full_server_fails_the_write_at_once_and_keeps_what_was_there",),
    ),
]

PARTS = {"Processes": PROCESSES, "Data": DATA, "Stores": STORES}

_INTRODUCTION = """# Faults

What can go wrong in production, what happens then, and which test shows it?
[State hosts](state-hosts.md#what-happens-when-something-fails) explains the processes.
[Security](../../SECURITY.md) says whom Millpond trusts.

`python scripts/faults.py` writes this page.
"""

_MORE = """
## Further tests

- `tests/simulation` runs histories on simulated hosts, state stores, disks and KV stores, each from one seed.
  Attempts die before and after each of their writes, or go on as zombies.
  A checker of lists finds lost updates, double counts, aborted reads and stale base segments.
  Each such fault is also planted, to prove that the checker finds it.
- `tests/fuzz` feeds wrong bytes to every decoder.
- `make clusters` runs the tests that start a Spark of their own, `make test` all others.
- `scripts/mutations.py` breaks one guard after another; a test must fail for each.
- `make kill` kills hosts, workers, executors, the driver and the store of streams at random.
  It uses all kinds of state and timers, lookups, tiles and fetches, and checkers that know only the events.
- `make soak` runs longer versions of all of these.
  [Soak](soak.md) counts what the last run tried.
"""


def page() -> str:
    """The page."""
    parts = [_INTRODUCTION]
    for title, faults in PARTS.items():
        parts.append(f"\n## {title}\n\n| what goes wrong | then | shown by |\n|---|---|---|\n")
        parts += [f"| {fault.name} | {fault.then} | {_shown_by(fault)} |\n" for fault in faults]
    return "".join([*parts, _MORE])


def _shown_by(fault: Fault) -> str:
    return "<br>".join(f"[`{name}`](../../{file})" for file, _, name in (test.partition("::") for test in fault.tests))


if __name__ == "__main__":
    PAGE.write_text(page())
