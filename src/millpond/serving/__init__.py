"""Fetcher, IR caches, serving info, and the fetcher over HTTP.

Starlette and uvicorn are imported when a server is made, so that this package stays light.
"""

from millpond.serving.client import FetchClient
from millpond.serving.fetcher import Fetcher
from millpond.serving.http import http_app
from millpond.serving.messages import FetcherStats, FetchRequest, FetchResponse
from millpond.serving.server import running_server, serve
from millpond.serving.serving_info import ServingInfoCache

__all__ = [
    "FetchClient",
    "FetchRequest",
    "FetchResponse",
    "Fetcher",
    "FetcherStats",
    "ServingInfoCache",
    "http_app",
    "running_server",
    "serve",
]
