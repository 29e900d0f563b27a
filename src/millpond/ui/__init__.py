"""The web page, which shows in a browser what a process does.

Place on the data path: beside it. `millpond serve` has the page at its root. `millpond.spark.ui` serves it beside a
Spark driver. `millpond ui` serves it for stored state, and for the pages of other processes.

`static/` is the page itself: plain JavaScript modules and one style sheet, sent as they are. Each view requests one
JSON document, whose types are in `views`. The processes that have the data make these documents.

Invariant: the page sends requests only to its own server, and shows every name as text.
"""
