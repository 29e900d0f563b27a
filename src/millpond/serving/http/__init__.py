"""The fetcher as a web service, and the processes that run the service."""

from millpond.api_keys import read_api_keys
from millpond.serving.http.app import HttpApp, http_app
from millpond.serving.http.limits import Limits
from millpond.serving.http.running.server import Tls, running_server, serve

__all__ = ["HttpApp", "Limits", "Tls", "http_app", "read_api_keys", "running_server", "serve"]
