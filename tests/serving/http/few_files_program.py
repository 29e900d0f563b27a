"""A server that may open only a few files, for tests; serves until its input ends.

python few_files_program.py FILES LOOP
"""

import logging
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from answering import Answering

from millpond.serving import Limits, http_app, running_server
from millpond.serving.http.running.log import log_as_json

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
    if sys.argv[2] == "asyncio":
        sys.modules["uvloop"] = None
    log_as_json()
    logging.basicConfig()
    limits = Limits(head_timeout_ms=60_000, timeout_ms=60_000)
    with running_server(http_app(Answering(), limits=limits)) as url:
        print(url, flush=True)
        sys.stdin.read()
