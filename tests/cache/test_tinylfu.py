"""What W-TinyLFU is told of many reads at once is what it is told of each in turn."""

from hypothesis import given
from hypothesis import strategies as st

from millpond.cache.best_window import BestWindow
from millpond.cache.tinylfu import TinyLfuOrder

steps = st.lists(
    st.tuples(st.just("put"), st.integers(0, 700)) | st.tuples(st.just("read"), st.lists(st.integers(0, 700))),
    max_size=60,
)


def orders_after(steps, entries):
    """The order after some puts and reads, told of the reads together, and one by one."""
    together, one_by_one = (TinyLfuOrder(entries, None, windows=BestWindow()) for _ in range(2))
    kept = set()
    for name, wanted in steps:
        if name == "read":
            present = [key for key in wanted if key in kept]
            together.read_all(present)
            for key in present:
                one_by_one.read(key)
        elif wanted not in kept:
            kept.add(wanted)
            for order in (together, one_by_one):
                order.added(wanted, 1)
            while len(kept) > entries:
                victim = together.victim()
                assert victim == one_by_one.victim()
                kept.discard(victim)
                for order in (together, one_by_one):
                    order.removed(victim)
    return together, one_by_one


@given(steps, st.integers(1, 20))
def test_many_reads_at_once_leave_the_order_as_one_by_one(steps, entries):
    together, one_by_one = orders_after(steps, entries)
    assert list(together.keys()) == list(one_by_one.keys())


def test_it_is_so_too_where_windows_are_chosen_meanwhile():
    steps = [("put", key) for key in range(300)]
    steps += [("read", [(start * 7 + key * key) % 300 for key in range(90)]) for start in range(200)]
    steps += [("put", key) for key in range(300, 600)]
    together, one_by_one = orders_after(steps, 300)
    assert list(together.keys()) == list(one_by_one.keys())
