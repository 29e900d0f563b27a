"""Fetcher, IR caches, serving info."""

from millpond.serving.fetcher import Fetcher
from millpond.serving.messages import FetcherStats, FetchRequest, FetchResponse
from millpond.serving.serving_info import ServingInfoCache

__all__ = ["FetchRequest", "FetchResponse", "Fetcher", "FetcherStats", "ServingInfoCache"]
