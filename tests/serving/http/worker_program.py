"""A worker, or with a number of workers their parent, over the tests' fetcher. The parent prints its URL."""

import sys

from millpond.serving import Limits, http_app
from millpond.serving.http.running.processes import Processes, serve_as_worker, worker_place
from millpond.serving.http.running.server import bound_listener, url_of

sys.path.insert(0, __file__.rpartition("/")[0])
from answering import Answering

LIMITS = Limits(drain_ms=2_000)


class Counting(Answering):
    """Answers how many the caller asked for, so that an answer is easily checked."""

    def _features(self, target, values):
        return {"count_1h": int(values["origin"]), "dep_delay_average_7d": 0.0}


def main():
    place = worker_place()
    if place is None:
        with bound_listener("127.0.0.1", 0) as listener:
            parent = Processes([sys.executable, *sys.argv], listener, int(sys.argv[1]), LIMITS.drain_ms)
            parent.run(lambda: print(url_of(listener), flush=True))
        return
    if sys.argv[2:] == ["broken"]:
        sys.exit(7)
    serve_as_worker(http_app(Counting(), limits=LIMITS), place)


if __name__ == "__main__":
    main()
