"""Extra fields, both ways."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from npzkit.errors import LimitExceededError, ZipFormatError
from npzkit.zip import extra_fields

from tables import each_row

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.lists(st.tuples(st.integers(0, 2**16 - 1), st.binary(max_size=20)), max_size=5),
    st.binary(max_size=3),
)
def test_blocks_survive_with_zipaligns_zeros_behind(blocks, tail):
    """Any blocks come back in order; up to three bytes behind them are skipped."""
    data = b"".join(extra_fields.format_extra(*block) for block in blocks)
    assert list(extra_fields.iter_extra(data + bytes(len(tail)))) == blocks


@given(st.binary(max_size=40))
def test_any_bytes_are_blocks_or_one_error(data):
    """Random bytes raise ZipFormatError or nothing."""
    try:
        list(extra_fields.iter_extra(data))
        extra_fields.parse_key_value_pairs(data)
    except ZipFormatError:
        pass


@given(st.dictionaries(TEXTS, TEXTS, max_size=8))
def test_key_value_pairs_survive(pairs):
    """Pairs come back in order, whatever characters they hold."""
    (block,) = extra_fields.iter_extra(extra_fields.format_key_value_pairs(pairs))
    assert block[0] == 0x564B
    assert list(extra_fields.parse_key_value_pairs(block[1]).items()) == list(pairs.items())


def test_key_value_pairs_are_the_specifications_bytes():
    """The example of the specification, byte for byte."""
    expected = bytes.fromhex(
        "4b562800 4b657956616c75655061697273 01 0c00 436f6e74656e742d54797065 0a00 746578742f706c61696e"
    )
    assert extra_fields.format_key_value_pairs({"Content-Type": "text/plain"}) == expected


@given(st.integers(0, 2**40), st.sampled_from([64, 4096]))
def test_alignment_reaches_the_next_multiple(offset, alignment):
    """Padding ends at a multiple, and is a block of its own that readers can skip."""
    data = extra_fields.format_alignment(offset, alignment)
    assert (offset + len(data)) % alignment == 0
    assert len(data) < alignment + 6
    assert all(identifier == 0xD935 for identifier, _ in extra_fields.iter_extra(data))


TABLE = [
    (extra_fields.format_zip64([]), ""),
    (extra_fields.format_zip64([2**32]), "0100 0800 0000000001000000"),
    (extra_fields.format_zip64([2**32, 5]), "0100 1000 0000000001000000 0500000000000000"),
    (extra_fields.format_alignment(64, 64), ""),
    (extra_fields.format_alignment(58, 64), "35d9 0200 4000"),
    (extra_fields.format_alignment(56, 64), "35d9 0400 4000 0000"),
    (extra_fields.format_alignment(59, 64), "35d9 4100 4000" + "00" * 63),
    (extra_fields.format_extra(0xABCD, b"xyz"), "cdab 0300 78797a"),
]


@each_row(("data", "expected"), TABLE)
def test_blocks_are_these_bytes(data, expected):
    """zip64 sizes, padding and any block, byte for byte."""
    assert data == bytes.fromhex(expected)
    for identifier, payload in extra_fields.iter_extra(data):
        assert extra_fields.find_extra(data, identifier) == payload
        if identifier == 1:
            count = len(payload) // 8
            assert extra_fields.format_zip64(extra_fields.parse_zip64(payload, count)) == data


def test_unicode_path():
    """Info-ZIP's UTF-8 name counts only beside the name it was made for."""
    payload = b"\x01" + zlib.crc32(b"gr\x94\xe1e").to_bytes(4, "little") + "größe".encode()
    assert extra_fields.parse_unicode_path(payload, b"gr\x94\xe1e") == "größe"
    assert extra_fields.parse_unicode_path(payload, b"other") is None
    assert extra_fields.parse_unicode_path(b"\x02" + payload[1:], b"gr\x94\xe1e") is None


def test_limits():
    """Too many or too long attributes are an error before anything is written."""
    with pytest.raises(LimitExceededError, match="255"):
        extra_fields.format_key_value_pairs({str(i): "" for i in range(256)})
    with pytest.raises(LimitExceededError, match=r"65,535"):
        extra_fields.format_key_value_pairs({"a": "x" * 65_536})
    with pytest.raises(LimitExceededError, match=r"65,279"):
        extra_fields.format_key_value_pairs({"a": "x" * 40_000, "b": "x" * 40_000})


def test_the_smallest_padding_is_taken_if_it_aligns():
    """Six bytes, the size of a block without padding, are not made larger."""
    assert len(extra_fields.format_alignment(58, 64)) == 6
    assert len(extra_fields.format_alignment(59, 64)) == 5 + 64
