"""The web page: what a process does, in a browser.

Place on the data path: beside it. `millpond serve` has the page at its root, `millpond.spark.ui` beside a Spark driver,
and `millpond ui` for stored state and for the pages of other processes.

`static/` is the page itself: plain modules and one style sheet, as they are sent. Each view asks for one JSON document,
whose types are in `views`. Who has the numbers makes these documents; the page only shows them.

Invariant: the page sends no request but to the server that it came from, and shows every name as text.
"""
