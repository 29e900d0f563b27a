"""Every error that Millpond raises on purpose.

There are few kinds, by what the caller should do: change the request (`OptionError`, `DataError`), try again
(`UnavailableError`), restore (`CorruptionError`), install something (`MissingDependencyError`). Each message
names the option, column, key or file, what was expected, what was found, and how to fix it.
"""


class MillpondError(Exception):
    """The base of all errors that Millpond raises on purpose."""


class OptionError(MillpondError, ValueError):
    """An option, definition or argument is wrong. Change it and ask again."""


class DataError(MillpondError, ValueError):
    """A record, column, key or value is not what was declared. Mend the data or the declaration."""


class UnavailableError(MillpondError):
    """Something outside Millpond (a store, a source, a host) did not answer. Trying again can help."""


class CorruptionError(MillpondError):
    """Durable data is missing, torn or altered. Nothing was taken from it; restore a good version."""


class MissingDependencyError(MillpondError, ImportError):
    """An optional part needs a package that is not installed. The message has the install line."""
