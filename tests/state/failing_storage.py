"""A storage of checkpoints that fails while it is told to."""


class Failing:
    """A storage whose `put` fails while it is told to."""

    def __init__(self, storage, failing):
        self._storage, self._failing = storage, failing
        self.name, self.versions, self.manifest = storage.name, storage.versions, storage.manifest
        self.segment = storage.segment

    def put(self, commit):
        if commit.manifest.shard in self._failing:
            raise OSError("no space left")
        self._storage.put(commit)
