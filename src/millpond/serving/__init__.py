"""Fetcher, IR caches, serving info, the fetcher over HTTP, and its clients.

uvicorn and httptools are imported when a server or a client is made, so that this package stays light.
"""

from millpond.serving.answers.answer_log import AnswerLog
from millpond.serving.answers.prepared import Prepared
from millpond.serving.client import AsyncFetchClient, FetchClient
from millpond.serving.counters import FetcherStats, Freshness, Histogram
from millpond.serving.fetcher import Fetcher
from millpond.serving.http import HttpApp, Limits, Tls, http_app, running_server, serve
from millpond.serving.messages import FetchRequest, FetchResponse, Target

__all__ = [
    "AnswerLog",
    "AsyncFetchClient",
    "FetchClient",
    "FetchRequest",
    "FetchResponse",
    "Fetcher",
    "FetcherStats",
    "Freshness",
    "Histogram",
    "HttpApp",
    "Limits",
    "Prepared",
    "Target",
    "Tls",
    "http_app",
    "running_server",
    "serve",
]
