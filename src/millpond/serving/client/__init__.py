"""Clients that fetch features over HTTP, with the methods of `Fetcher`."""

from millpond.serving.client.async_client import AsyncFetchClient
from millpond.serving.client.sync_client import FetchClient

__all__ = ["AsyncFetchClient", "FetchClient"]
