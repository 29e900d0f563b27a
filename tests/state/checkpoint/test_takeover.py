"""A writer is taken over from at any step of its `put`, deletion included: the new one loses nothing that it found."""

import warnings
from contextlib import suppress

import pytest

from millpond.errors import UnavailableError
from tests.state.checkpoint.faulty_files import Disk
from tests.state.checkpoint.file_versions import BIRTH, a_commit, on, reader, stored

EVERY_GROUP = [0, 1, 2, 3]
VERSIONS = [a_commit(BIRTH, "one", based=EVERY_GROUP)]
VERSIONS.append(a_commit(VERSIONS[0].manifest, "two"))
VERSIONS.append(a_commit(VERSIONS[1].manifest, "three", based=EVERY_GROUP))
"""The third version needs nothing of the earlier ones."""


def taken_over(step, retain, act):
    """Two versions are stored, and while the third one is, at this step somebody else acts; whether that came."""
    disk, came = Disk(), []
    files, storage = on(disk, retain=retain)
    for commit in VERSIONS[:2]:
        storage.put(commit)
    files.at = {step: lambda: came.append(act(disk))}
    with warnings.catch_warnings(), suppress(UnavailableError):
        warnings.simplefilter("ignore")
        storage.put(VERSIONS[2])
    return disk, came


def every_step(retain, act):
    step = 0
    while True:
        disk, came = taken_over(step, retain, act)
        if not came:
            assert step > 10, "a put has many steps"
            return
        yield disk, came[0]
        step += 1


def restores(disk):
    """A new writer reads the manifests that there are; it reads their segments when the old one has ended."""
    _, storage = on(disk)
    return storage, [storage.manifest(version) for version in storage.versions()]


def test_who_took_over_finds_every_segment_of_each_version_that_it_found():
    for _, (storage, manifests) in every_step(1, restores):
        assert manifests
        for manifest in manifests:
            for ref in manifest.segments:
                assert storage.segment(ref)


def goes_on(disk):
    """A new writer, which keeps three versions, stores one of its own."""
    _, storage = on(disk, retain=3)
    versions = storage.versions()
    storage.put(a_commit(storage.manifest(), "of another", attempt="other"))
    return versions


@pytest.mark.parametrize("retain", [1, 2])
def test_who_was_passed_by_deletes_no_version_that_it_had_kept_itself(retain):
    for disk, found in every_step(retain, goes_on):
        left = reader(disk)
        assert set(found[-retain:]) <= set(left.versions())
        for version in left.versions():
            assert stored(left, version)
