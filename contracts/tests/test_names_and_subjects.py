"""The codec: names as subject tokens, and as parts of ids."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from railweave.contracts.codec import decode_token, encode_id_part, encode_token
from railweave.contracts.errors import ContractError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)

WORKED = [
    ("88121", "88121"),
    ("0000:3b:00.0", "0000=3A3b=3A00=2E0"),
    ("node1.rack2", "node1=2Erack2"),
    ('Schüler "70B" 100%', "Sch=C3=BCler=20=2270B=22=20100=25"),
    ("a=b", "a=3Db"),
    ("*", "=2A"),
    (">", "=3E"),
    ("gpu_0-1", "gpu_0-1"),
]


@pytest.mark.parametrize(("name", "token"), WORKED)
def test_worked_examples_hold_both_ways(name: str, token: str) -> None:
    assert encode_token(name) == token
    assert decode_token(token) == name


@given(NAMES)
def test_every_name_comes_back_from_its_token(name: str) -> None:
    assert decode_token(encode_token(name)) == name


@given(NAMES)
def test_a_token_is_safe_in_subjects_and_keys(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", encode_token(name))


@given(NAMES, NAMES)
def test_two_names_never_share_a_token(one: str, other: str) -> None:
    assert (encode_token(one) == encode_token(other)) == (one == other)


@given(st.text())
def test_a_token_that_decodes_is_the_token_of_what_it_decodes_to(token: str) -> None:
    try:
        name = decode_token(token)
    except ContractError:
        return
    assert encode_token(name) == token


@pytest.mark.parametrize(
    "token", ["", "a.b", "a b", "=", "=4", "=4a", "=41", "=FF", "=C3", "=ED=A0=80", "ü", "a\n", "*"]
)
def test_what_no_name_has_as_its_token_is_refused(token: str) -> None:
    with pytest.raises(ContractError):
        decode_token(token)


@pytest.mark.parametrize("name", ["", "\ud800", "a\udfff"])
def test_what_is_no_unicode_text_has_no_token(name: str) -> None:
    with pytest.raises(ContractError):
        encode_token(name)


@pytest.mark.parametrize(
    ("part", "encoded"),
    [
        ("88121", "88121"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ('Schüler "70B" 100%', 'Sch%C3%BCler%20"70B"%20100%25'),
        ("a/b", "a%2Fb"),
        ("c4@3", "c4@3"),
    ],
)
def test_parts_of_ids_stay_readable(part: str, encoded: str) -> None:
    assert encode_id_part(part) == encoded


@given(NAMES, NAMES)
def test_two_names_never_share_a_part_of_an_id(one: str, other: str) -> None:
    assert (encode_id_part(one) == encode_id_part(other)) == (one == other)


@given(NAMES)
def test_a_part_of_an_id_is_safe_in_a_header_and_between_slashes(name: str) -> None:
    assert re.fullmatch(r"[!-.0-~]+", encode_id_part(name))
