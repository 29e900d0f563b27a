"""Wrong bytes made of right ones: random ones, changed ones, and changed ones under a right checksum.

The last are what a fault before the checksum was taken, or a stranger, would leave.
"""

NESTED = b"\x91" * 200_000
HUGE = {
    "lists in lists": NESTED,
    "maps in maps": b"\x81\xa1a" * 100_000,
    "a list of 4 billion items": b"\xdd\xff\xff\xff\xff",
    "lists of 128 million items in each other": b"\xdd\x08\x00\x00\x00" * 40,
    "a map of 4 billion items": b"\xdf\xff\xff\xff\xff",
    "4 GiB of bytes": b"\xc6\xff\xff\xff\xff",
    "a text that is no text": b"\x92\xa2\xff\xfe\x01",
    "a date that cannot be": b"\x91\xc7\x0c\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    "unhashable keys": b"\x91\x82\x81\x01\x02\x03\x80\x04",
}


def changed(random, data):
    """Give the bytes with some of them altered, left out, doubled or put in."""
    data = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(data) + 1)
        kind = random.randrange(5)
        if kind == 0 and place < len(data):
            data[place] = random.randrange(256)
        elif kind == 1 and place < len(data):
            data[place] ^= 1 << random.randrange(8)
        elif kind == 2:
            del data[place : place + random.randrange(1, 9)]
        elif kind == 3:
            data[place:place] = data[place : place + random.randrange(1, 20)]
        else:
            data[place:place] = random.choice((*HUGE.values(),))[:40] if random.random() < 0.3 else random.randbytes(3)
    return bytes(data)


def inputs_of(random, right, with_header, begin, head, count):
    """Give `count` inputs: random bytes, changed bytes, and changed bodies under a right checksum.

    Of a decoder of bytes that have no checksum, `with_header` is None.
    """
    body = right[begin:]
    for number in range(count):
        kind = number % 4
        if kind == 0:
            yield random.randbytes(random.randrange(80))
        elif kind == 1 or with_header is None:
            yield changed(random, right)
        elif kind == 2:
            yield with_header(body[:head] + random.randbytes(random.randrange(40)))
        else:
            yield with_header(body[:head] + changed(random, body[head:]))
