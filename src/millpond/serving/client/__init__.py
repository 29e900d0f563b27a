"""Fetching over HTTP: clients that are called as the fetcher is."""

from millpond.serving.client.async_client import AsyncFetchClient
from millpond.serving.client.sync_client import FetchClient

__all__ = ["AsyncFetchClient", "FetchClient"]
