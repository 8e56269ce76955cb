"""What a local header must repeat is one rule: every way to read a member applies it."""

from __future__ import annotations

import io

import npzkit
import numpy as np
import pytest
from forge import Member, archive, npy
from npzkit.errors import ChecksumError, NpzkitError, ZipFormatError
from npzkit.zip.entries import Entry
from npzkit.zip.extra_fields import CHANGED_NAME, format_extra, format_key_value_pairs
from npzkit.zip.local_header import REPEATED
from npzkit.zip.records import LOCAL_HEADER_SIZE, LOCAL_LAYOUT

from tables import each_row

ARRAY = np.arange(6.0)
FEW, MANY = 3, 100
"""Members of an archive that is read one by one, and of one that is read by columns."""

READ_ALONE = {
    "npz[key]": lambda npz: npz["x"],
    "read into out": lambda npz: npz.read("x", out=np.empty(6)),
    "load_all of one": lambda npz: npz.load_all(["x"]),
    "stream": lambda npz: npz.stream("x").read(),
    "info": lambda npz: npz.info("x"),
    "lazy": lambda npz: npz.lazy("x")[2:4],
}
READ_TOGETHER = {
    "load_all of few": FEW,
    "load_all of many": MANY,
}
UNCHECKED = {"info", "lazy"}
"""Ways that do not compare any CRC-32."""

_columns = LOCAL_LAYOUT.columns(*REPEATED, "signature", "version_needed", "time", "date")
OFFSETS = dict(zip(_columns["names"], _columns["offsets"], strict=True))
"""Fixed fields of a local header, but for the sizes of name and extra field."""


def changed(place: int, count: int, method: int, forced: bool, extra: bytes = b"") -> bytes:
    """Return an archive of `count` members, with a byte changed in one local header."""
    usual = [Member(f"{n}.npy", npy(np.arange(n + 1)), method=method) for n in range(count - 1)]
    special = Member("x.npy", npy(ARRAY), method=method, extra=extra)
    if forced:
        sizes = len(special.data).to_bytes(8, "little") + len(special.raw).to_bytes(8, "little")
        special.local_extra = b"\x01\x00\x10\x00" + sizes
        special.local |= {"csize": 0xFFFFFFFF, "usize": 0xFFFFFFFF}
    half = count // 2
    data = bytearray(archive(*usual[:half], special, *usual[half:]))
    data[sum(len(member.local_bytes()) for member in usual[:half]) + place] ^= 1
    return bytes(data)


def outcomes(
    place: int, method: int = 0, *, forced: bool = False, extra: bytes = b""
) -> dict[str, object]:
    """Read an archive in every way; for each the error, or None."""
    found: dict[str, object] = {}
    ways = {name: (FEW, read) for name, read in READ_ALONE.items()}
    ways |= {name: (count, lambda npz: npz.load_all()) for name, count in READ_TOGETHER.items()}
    for name, (count, read) in ways.items():
        data = changed(place, count, method, forced, extra)
        try:
            with npzkit.open(io.BytesIO(data)) as npz:
                read(npz)
        except NpzkitError as error:
            found[name] = error
        else:
            found[name] = None
    return found


def test_an_entry_has_the_fields_side_by_side():
    """The fields of one member are compared in one step, as the rule lists them."""
    first = Entry._fields.index(REPEATED[0])
    assert Entry._fields[first : first + len(REPEATED)] == REPEATED
    assert set(REPEATED) <= OFFSETS.keys()


@pytest.mark.slow
@each_row("method", [0, 8])
@each_row("field", sorted(OFFSETS))
def test_every_way_to_read_checks_the_same_fields(field, method):
    """A field that the rule names is compared by every way to read, any other by none."""
    for name, error in outcomes(OFFSETS[field], method).items():
        is_checked = field in REPEATED or field == "signature"
        if field == "crc32" and name in UNCHECKED:
            is_checked = False
        assert (error is not None) == is_checked, name
        if is_checked:
            assert "the local header and the central directory disagree" in str(error), name
            assert isinstance(error, ChecksumError) == (field == "crc32"), name
            assert error.key == "x"


@pytest.mark.parametrize("method", [0, 8])
def test_every_way_to_read_compares_the_name(method):
    """A letter of the name that differs is noticed by every way to read."""
    for name, error in outcomes(LOCAL_HEADER_SIZE, method).items():
        assert "disagree on the name" in str(error), name


@pytest.mark.parametrize("size", ["uncompressed size", "compressed size"])
@pytest.mark.parametrize("method", [0, 8])
def test_every_way_to_read_compares_sizes_of_zip64(size, method):
    """Sizes in a zip64 block, where np.savez puts them, are compared by every way to read."""
    place = LOCAL_HEADER_SIZE + len("x.npy") + (4 if size.startswith("un") else 12)
    for name, error in outcomes(place, method, forced=True).items():
        assert f"disagree on the {size}" in str(error), name


UNIT = {"unit": "kelvin"}
EXTRAS = {
    "attributes": (format_key_value_pairs(UNIT), True),
    "long attributes": (format_key_value_pairs({"about": "x" * 400, **UNIT}), True),
    "after a block of another program": (
        format_extra(0x5455, b"\1time") + format_key_value_pairs(UNIT), True,
    ),
    "changed later": (format_key_value_pairs({**UNIT, CHANGED_NAME: ""}), False),
    "of another program": (format_extra(0x5455, b"kelvin"), False),
}  # fmt: skip


@pytest.mark.slow
@each_row("method", [0, 8])
@each_row(("extra", "is_compared"), EXTRAS.values())
def test_every_way_to_read_compares_attributes(extra, is_compared, method):
    """A unit that differs is noticed by every way to read, unless the entry was changed later."""
    place = LOCAL_HEADER_SIZE + len("x.npy") + extra.rindex(b"kelvin")
    for name, error in outcomes(place, method, extra=extra).items():
        assert (error is not None) == is_compared, name
        assert error is None or "disagree on the attributes" in str(error), name


def test_attributes_that_are_changed_or_removed_remain_readable(tmp_path):
    """Attributes in the directory alone, or in the local header alone, are no damage."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        for key in "abc":
            w.add(key, ARRAY, attrs=UNIT)
    with npzkit.NpzWriter(path, "a") as w:
        w.attrs("a")["unit"] = "K"
        del w.attrs("b")["unit"]
    with npzkit.open(path) as npz:
        assert [dict(npz.info(key).attrs) for key in "abc"] == [{"unit": "K"}, {}, UNIT]
        assert list(npz.load_all()) == list("abc")
        assert npz.verify().ok


@pytest.mark.remedy("One of them is damaged: npzkit.repair(path, output) saves the array.")
def test_a_flipped_bit_of_an_attribute_is_found_and_repaired(tmp_path):
    """A unit "kelvin" that became "jelvin" is an error, which `verify` reports and repair undoes."""
    path = tmp_path / "a.npz"
    with npzkit.NpzWriter(path) as w:
        w.add("t", ARRAY, attrs=UNIT)
    data = bytearray(path.read_bytes())
    data[data.index(b"kelvin")] ^= 1
    path.write_bytes(data)
    with npzkit.open(path) as npz:
        with pytest.raises(ZipFormatError, match=r"disagree on the attributes.*'kelvin'"):
            npz["t"]
        assert not npz.verify().ok
    npzkit.repair(path, tmp_path / "b.npz")
    with npzkit.open(tmp_path / "b.npz") as npz:
        assert dict(npz.info("t").attrs) == UNIT
        np.testing.assert_array_equal(npz["t"], ARRAY)
