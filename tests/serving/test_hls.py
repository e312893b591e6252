"""Captions that are shared, as HLS: what parsers and FFmpeg find in them."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import webvtt
from websockets.asyncio.client import connect

from sottovoce.api import Model
from sottovoce.serving.captions import hls
from sottovoce.serving.captions.caption_messages import read_publication
from sottovoce.serving.captions.hls import PLAYLIST, SEGMENT_S, HlsWriter
from sottovoce.serving.captions.shared_captions import SharedCaptions
from sottovoce.serving.http.server import ServerThread
from tests.serving.servers import SlowModel, settings, until
from tests.serving.test_captions import captions, received


class Clock:
    now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


def spoken(number: int, start: float, n_words: int, text: str = "word") -> dict[str, object]:
    """One utterance, a word a second."""
    words = [
        {
            "word": f" {text}{number}.{i}",
            "start": start + i,
            "end": start + i + 1,
            "language": "en",
            "speaker": "A",
        }
        for i in range(n_words)
    ]
    return {"id": number, "start": start, "end": start + n_words, "language": "en", "words": words}


def publish(shared: SharedCaptions, **parts: object) -> None:
    change = read_publication(captions(**parts))[1]
    assert change is not None
    shared.take(change)


def words_of(folder: Path) -> list[str]:
    """All words of the segments that the playlist names, each a valid document with its map of times."""
    lines = (folder / PLAYLIST).read_text().splitlines()
    names = [line for line in lines if line and not line.startswith("#")]
    found = []
    for name in names:
        text = (folder / name).read_text(encoding="utf-8")
        assert text.startswith("WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0\n\n")
        for cue in webvtt.from_string(text):
            assert cue.end_in_seconds - cue.start_in_seconds <= hls.CUE_S
            found += cue.text.split()
    return found


def test_every_word_is_in_one_segment_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they come: in growing utterances, late, corrected after they were written."""
    clock = Clock()
    monkeypatch.setattr(hls, "time", clock)
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path / "x")
    for second in range(1, 21):
        publish(shared, now=spoken(0, 0.0, second), names={"A": "Anna & co"})
        writer.write_due()
        clock.now_s += 1.0
    publish(shared, utterances=[spoken(0, 0.0, 20, "changed")], now=None)
    publish(shared, utterances=[spoken(1, 21.0, 3)])
    lines = (tmp_path / "x" / PLAYLIST).read_text().splitlines()
    assert lines.count(f"#EXTINF:{SEGMENT_S}.000,") == 2, "up to second 12: words of the next may yet come"
    assert "#EXT-X-ENDLIST" not in lines
    assert "<v Anna &amp; co>" in (tmp_path / "x" / "captions0.vtt").read_text()
    writer.write_due(is_last=True)
    assert (tmp_path / "x" / PLAYLIST).read_text().endswith("#EXT-X-ENDLIST\n")
    numbers = [re.sub(r"\D*(\d+\.\d+)$", r"\1", word) for word in words_of(tmp_path / "x")]
    assert numbers == [f"0.{i}" for i in range(20)] + [f"1.{i}" for i in range(3)]


def test_silence_makes_segments_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A player waits for none that does not come."""
    clock = Clock()
    monkeypatch.setattr(hls, "time", clock)
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path)
    writer.write_due()
    assert list(tmp_path.iterdir()) == [], "nothing was said yet"
    publish(shared, utterances=[spoken(0, 0.0, 2)])
    writer.write_due()
    clock.now_s += 30.0
    writer.write_due()
    assert len(list(tmp_path.glob("*.vtt"))) == 4
    assert words_of(tmp_path) == ["word0.0", "word0.1"]


def test_another_text_goes_on_after_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its seconds are counted from 0 again where it is spoken, and a player's are not."""
    clock = Clock()
    monkeypatch.setattr(hls, "time", clock)
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path)
    publish(shared, utterances=[spoken(0, 0.0, 2)])
    writer.write_due()
    clock.now_s += 9.0
    writer.write_due()
    publish(shared, clear=True, utterances=[spoken(0, 0.0, 2, "again")])
    writer.write_due(is_last=True)
    assert words_of(tmp_path) == ["word0.0", "word0.1", "again0.0", "again0.1"]
    assert "00:00:06.000 -->" in (tmp_path / "captions1.vtt").read_text()


def test_what_waits_is_written_though_another_text_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hls, "time", Clock())
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path)
    publish(shared, utterances=[spoken(0, 0.0, 8)])
    writer.write_due()
    publish(shared, clear=True, utterances=[spoken(0, 0.0, 2, "again")])
    writer.write_due(is_last=True)
    assert words_of(tmp_path) == [*(f"word0.{i}" for i in range(8)), "again0.0", "again0.1"]
    assert "00:00:12.000 -->" in (tmp_path / "captions2.vtt").read_text()


def test_a_word_that_begins_before_the_last_one_ends_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(hls, "time", clock)
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path)
    said = spoken(0, 5.0, 2)
    words = cast("list[dict[str, object]]", said["words"])
    words[0]["end"] = 6.5
    publish(shared, utterances=[said])
    writer.write_due()
    clock.now_s += 4.0
    writer.write_due()
    assert words_of(tmp_path) == ["word0.0"]
    writer.write_due(is_last=True)
    assert words_of(tmp_path) == ["word0.0", "word0.1"]


def test_a_name_is_one_line_or_the_letter(tmp_path: Path) -> None:
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path)
    publish(shared, utterances=[spoken(0, 0.0, 2)], names={"A": None})
    writer.write_due(is_last=True)
    assert "<v A>word0.0" in (tmp_path / "captions0.vtt").read_text()
    publish(shared, utterances=[spoken(1, 6.0, 2)], names={"A": "Anna\n\n00:00 --> 00:01\nx"})
    writer.write_due(is_last=True)
    assert "<v Anna 00:00 --&gt; 00:01 x>word1.0" in (tmp_path / "captions1.vtt").read_text()


def test_a_long_session_is_written_in_parts_with_few_playlists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path)
    written: list[str] = []
    monkeypatch.setattr(writer, "_put", lambda name, text: written.append(name))
    publish(shared, utterances=[spoken(n, 60.0 * n, 10) for n in range(180)])
    for _ in range(3):
        before = len(written)
        writer.write_due()
        assert len(written) - before == hls.MOST_SEGMENTS + 1
    writer.write_due(is_last=True)
    assert written.count(PLAYLIST) == 4
    assert len(written) == 4 + 1792, "10750 s"


def test_a_time_that_cannot_be_makes_no_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hls, "BEFORE_SHARED_S", 60.0)
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path)
    publish(shared, utterances=[spoken(0, 0.0, 2), spoken(1, 999_000.0, 10)])
    publish(shared, utterances=[spoken(0, 0.0, 2)])
    writer.write_due()
    writer.write_due(is_last=True)
    assert len(list(tmp_path.glob("*.vtt"))) <= 11
    assert words_of(tmp_path) == ["word0.0", "word0.1"]


def test_a_folder_that_cannot_be_written_is_told_once_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(hls, "time", clock)
    (tmp_path / "file").write_text("")
    shared = SharedCaptions()
    writer = HlsWriter(shared, tmp_path / "file" / "x")
    publish(shared, utterances=[spoken(0, 0.0, 20)])
    writer.write_due(is_last=True)
    publish(shared, utterances=[spoken(1, 20.0, 20)])
    writer.write_due(is_last=True)
    assert [record.message for record in caplog.records] == ["captions cannot be written as HLS"]
    assert (tmp_path / "file").read_text() == ""
    assert "word1.0" in str(shared.since(-1)), "readers get what is said"


def test_a_session_that_is_shared_is_written_and_ffmpeg_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = replace(settings(), hls=str(tmp_path))

    async def run(address: str) -> str:
        async with connect(f"ws://{address}/v1/captions") as speaker:
            token = str((await received(speaker))["token"])
            await speaker.send(captions(utterances=[spoken(0, 0.0, 20), spoken(1, 21.0, 3)]))
            await asyncio.to_thread(until, lambda: (tmp_path / token / PLAYLIST).exists())
            await speaker.send('{"type": "close"}')
            return token

    threads = set()
    put = HlsWriter._put

    def noted(self: HlsWriter, name: str, text: str) -> None:
        threads.add(threading.current_thread().name)
        put(self, name, text)

    monkeypatch.setattr(HlsWriter, "_put", noted)
    with ServerThread(wanted, lambda name: cast(Model, SlowModel())) as server:
        server.wait_until_ready()
        token = asyncio.run(run(server.address))
        until(lambda: "ENDLIST" in (tmp_path / token / PLAYLIST).read_text())
    assert len(words_of(tmp_path / token)) == 23
    assert threads
    assert all("AnyIO worker" in name for name in threads), "the event loop writes nothing"
    if shutil.which("ffmpeg") is None:
        pytest.skip("FFmpeg is not installed: its part was left out")
    command = ["ffmpeg", "-v", "error", "-i", PLAYLIST, "-f", "webvtt", "-"]
    read = subprocess.run(
        command, cwd=tmp_path / token, capture_output=True, text=True, check=False, timeout=60
    )
    found = re.findall(r"word\d+\.\d+", read.stdout)
    assert (len(found), read.stderr) == (23, "")
