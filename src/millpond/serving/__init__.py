"""Fetcher, IR caches, serving info, and the fetcher over HTTP.

Starlette and uvicorn are imported when a server is made, so that this package stays light.
"""

from millpond.serving.client import FetchClient
from millpond.serving.counters import FetcherStats, Freshness, Histogram
from millpond.serving.fetcher import Fetcher
from millpond.serving.http import http_app
from millpond.serving.messages import FetchRequest, FetchResponse, Target
from millpond.serving.prepared import Prepared
from millpond.serving.server import running_server, serve

__all__ = [
    "FetchClient",
    "FetchRequest",
    "FetchResponse",
    "Fetcher",
    "FetcherStats",
    "Freshness",
    "Histogram",
    "Prepared",
    "Target",
    "http_app",
    "running_server",
    "serve",
]
