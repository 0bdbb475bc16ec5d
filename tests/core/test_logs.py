"""Logs: bounded, complete up to their bounds, without secrets however a process writes them."""

from __future__ import annotations

import os
import resource
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.logs import LINE_BYTES, BoundedFile, LogPipe, Logs, rotated

TOKEN = b"hf_" + b"A1b2C3d4" * 4
BODY = b"MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"
KEY = b"-----BEGIN RSA PRIVATE KEY-----\n" + (BODY + b"\n") * 3 + b"-----END RSA PRIVATE KEY-----"


def printed(path: Path, *pieces: bytes, logs: Logs | None = None) -> LogPipe:
    """A log that a process has written piece by piece."""
    pipe = LogPipe((logs or Logs()).open(path))
    with pipe.writer as writer:
        for piece in pieces:
            writer.write(piece)
    pipe.join(timeout_s=30)
    return pipe


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [({"max_mib": 0}, "max_mib must be > 0, got 0"), ({"num_files": 1}, "num_files must be >= 2")],
)
def test_wrong_limits_are_refused(arguments: dict[str, int], rule: str) -> None:
    with pytest.raises(ValueError, match=f"logs.{rule}"):
        Logs(**arguments)


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(2, 4))
def test_the_newest_bytes_are_kept_in_order_and_the_dropped_are_counted(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], num_files: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "x.log"
    file = BoundedFile(path, max_bytes=50, num_files=num_files)
    written = b""
    for number, size in enumerate(sizes):
        piece = bytes([number]) * size
        file.write(piece)
        written += piece
    file.close()
    files = rotated(path)
    kept = b"".join(each.read_bytes() for each in files)
    assert written.endswith(kept)
    assert len(written) == len(kept) + file.dropped_bytes
    assert len(files) <= num_files
    assert all(each.stat().st_size <= 50 for each in files)


def test_a_log_says_what_it_lacks(tmp_path: Path) -> None:
    file = Logs(max_mib=150 / 2**20, num_files=2).open(tmp_path / "x.log")
    for letter in (b"a", b"b", b"c"):
        file.write(letter * 100)
    file.close()
    before, last = rotated(tmp_path / "x.log")
    assert before.read_bytes() == b"b" * 100
    told, _, rest = last.read_text().partition("\n")
    assert told == "[100 bytes of older output dropped; logs.max_mib and logs.num_files keep more]"
    assert rest == "c" * 100


def test_what_was_dropped_before_a_run_went_on_is_counted_too(tmp_path: Path) -> None:
    for letter in (b"a", b"b", b"c", b"d"):
        file = Logs(max_mib=150 / 2**20, num_files=2).open(tmp_path / "x.log")
        file.write(letter * 100)
        file.close()
    told, _, rest = (tmp_path / "x.log").read_text().partition("\n")
    assert file.dropped_bytes == 200
    assert told.startswith("[200 bytes of older output dropped")
    assert rest == "d" * 100


def test_a_file_that_cannot_be_begun_anew_loses_nothing_and_is_later(tmp_path: Path) -> None:
    file = BoundedFile(tmp_path / "x.log", max_bytes=10, num_files=3)
    file.write(b"a" * 10)
    file.write(b"b" * 9)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                file.write(b"c" * 10)
        file.write(b"c")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    file.write(b"d" * 10)
    file.close()
    assert [each.read_bytes() for each in rotated(tmp_path / "x.log")] == [b"a" * 10, b"b" * 9 + b"c", b"d" * 10]
    assert file.dropped_bytes == 0


def test_a_directory_that_is_gone_does_not_stop_who_prints(tmp_path: Path) -> None:
    (directory := tmp_path / "logs").mkdir()
    pipe = LogPipe(Logs(max_mib=10 / 2**20).open(directory / "x.log"))
    with pipe.writer as writer:
        writer.write(b"0123456789\n")
        while not pipe.tail():
            time.sleep(0.01)
        shutil.rmtree(directory)
        assert all(os.write(writer.fileno(), b"x\n" * 2**15) for _ in range(10))
    pipe.join(timeout_s=30)
    assert pipe.tail().endswith("x\nx\n")


def test_going_on_appends(tmp_path: Path) -> None:
    printed(tmp_path / "x.log", b"one\n")
    printed(tmp_path / "x.log", b"two\n")
    assert (tmp_path / "x.log").read_bytes() == b"one\ntwo\n"


@given(st.data())
def test_no_cut_between_writes_lets_a_token_through(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = b"before " + TOKEN + b" after\n\xff\x00 " + TOKEN + b"\nkey: " + KEY + b"\n" + KEY + b" and\nlast"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    path = tmp_path_factory.mktemp("log") / "x.log"
    pipe = printed(path, *pieces)
    assert path.read_bytes() == b"before *** after\n\xff\x00 ***\nkey: ***\n*** and\nlast"
    assert TOKEN.decode() not in pipe.tail()


def test_a_key_without_end_does_not_silence_a_log_for_ever(tmp_path: Path) -> None:
    printed(tmp_path / "x.log", KEY[:-40], *(b"%d\n" % number for number in range(30_000)))
    text = (tmp_path / "x.log").read_bytes()
    assert text.startswith(b"***")
    assert BODY not in text
    assert text.endswith(b"\n29998\n29999\n")


@pytest.mark.parametrize("offset", range(-40, 41, 8))
def test_a_line_without_end_is_cut_and_never_within_a_token(tmp_path: Path, offset: int) -> None:
    start = LINE_BYTES + offset - len(TOKEN)
    line = b"x" * start + b" " + TOKEN + b"y" * 300_000
    printed(tmp_path / "x.log", line, b"\nnext\n")
    text = (tmp_path / "x.log").read_bytes()
    assert TOKEN[:12] not in text
    kept, _, told = text.partition(b" [")
    assert set(kept) == set(b"x")
    assert int(told.split()[0]) == len(line) - len(kept)
    assert text.endswith(b"bytes of this line dropped]\nnext\n")


def test_a_progress_bar_is_a_line_per_state(tmp_path: Path) -> None:
    printed(tmp_path / "x.log", b"10%\r20%\r", b"done\r\n")
    assert (tmp_path / "x.log").read_bytes() == b"10%\n20%\ndone\n"


def test_the_tail_is_the_newest_output_even_right_after_the_file_moved_aside(tmp_path: Path) -> None:
    pipe = printed(tmp_path / "x.log", *(b"%d\n" % number for number in range(30_000)), logs=Logs(max_mib=0.001))
    assert len(rotated(tmp_path / "x.log")) > 1
    assert pipe.tail().endswith("\n29998\n29999\n")
    assert len(pipe.tail()) > 10_000


def test_a_full_disk_does_not_stop_who_prints(tmp_path: Path) -> None:
    pipe = LogPipe(BoundedFile(Path("/dev/full"), max_bytes=10**9, num_files=2))
    with pipe.writer as writer:
        assert all(os.write(writer.fileno(), b"x\n" * 2**15) for _ in range(10))
    pipe.join(timeout_s=30)
    assert pipe.tail().endswith("x\nx\n")
