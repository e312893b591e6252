"""Networks from sound to text: functions, ONNX files and models of transformers, whole and in windows."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

import sottovoce
from sottovoce.cli.main import run
from sottovoce.ctc.emissions import log_softmax
from sottovoce.ctc.network import AcousticModel
from sottovoce.errors import InputError, OptionError, SottovoceError
from sottovoce.network_model import CtcModel
from sottovoce.options.decoding import DeferralOptions
from sottovoce.options.transcribe import AlignOptions
from sottovoce.types import AudioChunk, Final, Partial, Transcript, Unstable

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
LABELS = ["-", "a", "b", "|"]
HOP = 320
ONNX = """model = "letters.onnx"
labels = ["-", "a", "b", "|"]
frame_ms = 20
samples = "audio"
lengths = "length"
output = "logits"
n_frames = "frames"
logits = true
"""


def spoken(labels: Sequence[int]) -> np.ndarray:
    """Samples whose every frame of 20 ms has about the level of its label."""
    noise = np.random.default_rng(1).normal(0, 0.1, len(labels))
    return np.repeat((np.array(labels) + noise).astype(np.float32) / 8, HOP)


def reads_levels(windows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Log-probabilities of what `spoken` says, less sure near the edges of a window."""
    result = []
    for samples in windows:
        levels = 8 * samples[: len(samples) // HOP * HOP : HOP, None]
        distances = np.abs(levels - np.arange(len(LABELS)))
        distances[[0, -1]] *= 0.1
        result.append(log_softmax(-8 * distances))
    return result


@pytest.fixture(scope="module")
def recording() -> np.ndarray:
    """Words and pauses, 24 s."""
    random = np.random.default_rng(0)
    said = [0, 0]
    while len(said) < 1150:
        for _ in range(random.integers(1, 5)):
            said += [random.integers(1, 3)] * random.integers(1, 3) + [0]
        said += [3] * random.integers(1, 3) + [0] * random.choice([1, 40])
    return spoken([*said, *[0] * (1200 - len(said))])


def model(**given: object) -> CtcModel:
    return sottovoce.ctc_model(reads_levels, labels=LABELS, frame_s=0.02, **given)  # type: ignore[arg-type]


def test_windows_read_what_the_whole_says(recording: np.ndarray) -> None:
    whole = model().transcribe(recording).collect()
    assert model(longest_s=2.0).transcribe(recording).collect() == whole
    assert whole.duration == 24.0
    assert len(whole.segments) > 5
    for before, after in zip(whole.segments, whole.segments[1:], strict=False):
        assert after.start - before.end >= 0.5
    assert [word.word.strip() for word in whole.words] == whole.text.split()
    assert all(word.start < word.end <= whole.duration for word in whole.words)


@pytest.mark.parametrize("n_frames", [0, 1, 99, 100, 101, 234, 1234])
@pytest.mark.parametrize("context_s", [0.0, 0.2, None])
def test_windows_follow_one_another_and_have_one_length(n_frames: int, context_s: float | None) -> None:
    network = model(longest_s=2.0, context_s=context_s).network
    context = round(network.margin_s / 0.02)
    frames = np.repeat(np.arange(n_frames, dtype=np.float32), HOP)
    pieces = [AudioChunk(frames[at : at + 5000], at) for at in range(0, len(frames), 5000)]
    used: list[int] = []
    for window in network.windows(pieces):
        inside = window.samples[::HOP]
        assert len(inside) == min(100, n_frames)
        used += inside[window.first : window.last].astype(int).tolist()
        assert window.first >= context or inside[0] == 0
        assert window.last is None or len(inside) - window.last == context
    assert used == list(range(n_frames))


def test_speech_alone_is_read_with_voice_activity_detection(recording: np.ndarray) -> None:
    """The pauses of 3 s between the words do not pass through the network; times stay."""
    seconds: list[float] = []

    def log_probs(windows: Sequence[np.ndarray]) -> list[np.ndarray]:
        seconds.extend(len(samples) / 16_000 for samples in windows)
        return reads_levels(windows)

    clip = sottovoce.load_audio(CLIP)
    samples = np.concatenate([clip, np.zeros(160_000, np.float32), clip])
    network = sottovoce.ctc_model(log_probs, labels=LABELS, frame_s=0.02, longest_s=4.0)
    options = sottovoce.TranscribeOptions(mode="vad", batch_size=3)
    transcript = network.transcribe(samples, options=options).collect()
    assert transcript.duration == pytest.approx(len(samples) / 16_000, abs=0.02)
    assert sum(seconds) < 2.5 * len(clip) / 16_000
    assert transcript.words[-1].end > len(clip) / 16_000 + 10


def test_a_transcription_goes_on_where_it_was_left(recording: np.ndarray) -> None:
    whole = list(model(longest_s=2.0).transcribe(recording))
    left = model(longest_s=2.0).transcribe(recording)
    before = [next(left) for _ in range(4)]
    point = left.resume_point
    assert point is not None
    rest = list(model(longest_s=2.0).transcribe(recording, resume=type(point).of_json(point.to_json())))
    said = [*before[: point.n_segments], *rest]
    assert [(item.id, item.text, item.start) for item in said] == [
        (item.id, item.text, item.start) for item in whole
    ]


def test_options_of_recordings_apply(recording: np.ndarray) -> None:
    seen: list[float] = []
    part = sottovoce.TranscribeOptions(offset_s=6.0, duration_s=8.0)
    transcript = (
        model()
        .transcribe(
            recording, options=part, beam_size=4, language="de", on_progress=lambda at, _: seen.append(at)
        )
        .collect()
    )
    assert transcript.language == "de"
    assert 6.0 <= transcript.segments[0].start < transcript.segments[-1].end <= 14.0
    assert seen
    several = model(longest_s=4.0).transcribe_files([recording, recording[:80_000], "none.wav"])
    first, second, missing = (outcome for _, outcome in several)
    assert isinstance(first, Transcript)
    assert isinstance(second, Transcript)
    assert first.text == model().transcribe(recording).text
    assert "none.wav" in str(missing)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda item: item.transcribe(np.zeros(9), task="translate"), "task 'translate'"),
        (lambda item: item.transcribe(np.zeros(9), language="en,de"), "languages en,de to tell apart"),
        (
            lambda item: item.transcribe(
                np.zeros(9), options=sottovoce.TranscribeOptions(initial_prompt="a")
            ),
            "initial_prompt",
        ),
        (lambda item: item.detect_language(np.zeros(9)), "detection of languages"),
        (
            lambda item: item.align(np.zeros(9), "a", options=AlignOptions(method="attention")),
            "method 'attention'",
        ),
        (lambda item: item.fusion(grammar="a.gbnf"), "grammar"),
        (lambda item: item.session(stream=sottovoce.StreamOptions(init_prompt="a")), "init_prompt"),
        (lambda item: item.session(stream=sottovoce.StreamOptions(eagerness="low")), "eagerness"),
    ],
)
def test_a_network_refuses_in_one_line_what_only_whisper_can(call: object, message: str) -> None:
    with pytest.raises(OptionError, match=f"^{message}: expected a Whisper model, got the CTC network"):
        call(model())  # type: ignore[operator]


def test_live_speech_has_the_words_of_the_recording(recording: np.ndarray) -> None:
    whole = model().transcribe(recording).collect()
    session = model(longest_s=2.0).session(vad=False, captions="revisable")
    events = [
        event for at in range(0, len(recording), 3000) for event in session.push(recording[at : at + 3000])
    ]
    events += session.close()
    words = [word for event in events if isinstance(event, Partial) for word in event.words]
    assert [(word.word, word.start) for word in words] == [(word.word, word.start) for word in whole.words]
    assert (
        "".join(word.word for word in words).split()
        == " ".join(event.text for event in events if isinstance(event, Final)).split()
    )
    assert any(isinstance(event, Unstable) and event.text for event in events)
    late = [event.emission_time - event.words[0].end for event in events if isinstance(event, Partial)]
    assert float(np.median(late)) < 2.0


@pytest.mark.parametrize("labels", [LABELS, ["-", "▁a", "▁b", "b"], ["-", "x", "y", "|"]])
def test_a_text_is_timed_where_the_search_reads_it(
    recording: np.ndarray, tmp_path: Path, labels: list[str]
) -> None:
    """Spelled in letters, in pieces and by a lexicon; longer than a window of alignment."""
    network = sottovoce.ctc_model(reads_levels, labels=labels, frame_s=0.02)
    if "x" in labels:
        spelled = [each for n in range(1, 5) for each in itertools.product("xy", repeat=n)]
        lines = [f"{''.join(each).translate({120: 'ka', 121: 'o'})} {' '.join(each)}" for each in spelled]
        (tmp_path / "words.txt").write_text("\n".join(lines))
        network = network.with_language_models(lexicon=tmp_path / "words.txt")
    samples = np.tile(recording, 2)
    transcript = network.transcribe(samples).collect()
    options = AlignOptions(keep_to_speech=False)
    aligned = network.align(samples, transcript.text, options=options)
    assert [word.word for word in aligned.words] == [word.word for word in transcript.words]
    for ours, read in zip(aligned.words, transcript.words, strict=True):
        assert ours.start == pytest.approx(read.start, abs=0.021)
        assert ours.end == pytest.approx(read.end, abs=0.021)


@pytest.mark.parametrize(("first", "second"), [("nano", "ctc:nano"), ("ctc:nano", "nano")])
def test_uncertain_speech_is_read_by_a_model_of_another_kind(first: str, second: str) -> None:
    always = DeferralOptions(min_avg_logprob=0.0)
    drafts, reads = sottovoce.load_model(first), sottovoce.load_model(second)
    transcription = drafts.transcribe(CLIP, language="en", second=reads.as_second(always))
    assert transcription.text.split() == reads.transcribe(CLIP, language="en").text.split()
    assert transcription.second_s > 0
    assert {token for segment in transcription for token in segment.tokens} <= set(
        transcription.collect().token_texts
    )
    german = sottovoce.ctc_model(reads_levels, labels=LABELS, frame_s=0.02, language="de").as_second()
    with pytest.raises(OptionError, match="second model: reads 'de' alone"):
        drafts.transcribe(CLIP, language="en", second=german)


def test_characters_are_words_in_scripts_without_spaces(recording: np.ndarray) -> None:
    model = sottovoce.ctc_model(reads_levels, labels=["-", "你", "a", "好"], frame_s=0.02)
    whole = model.transcribe(recording).collect()
    assert {word.word.strip() for word in whole.words} >= {"你", "好"}
    assert all(word.word in "你好" or set(word.word) == {" ", "a"} for word in whole.words)
    assert "你好" in whole.text
    with model.session(vad=False) as session:
        events = session.push(recording) + session.close()
    words = [word for event in events if isinstance(event, Partial) for word in event.words]
    assert [(word.word, word.start) for word in words] == [(word.word, word.start) for word in whole.words]


def test_language_models_take_part(recording: np.ndarray, tmp_path: Path) -> None:
    english = model(language="en")
    (tmp_path / "words.txt").write_text("a\nb\n")
    decoder = english.fusion(lexicon=tmp_path / "words.txt")
    transcript = english.transcribe(recording, fusion=decoder).collect()
    assert set(transcript.text.split()) == {"a", "b"}
    assert {word.language for word in transcript.words} == {"en"}
    configured = english.with_language_models(lexicon=tmp_path / "words.txt")
    assert configured.transcribe(recording).text == transcript.text
    with configured.session(vad=False) as session:
        finals = [
            event.text for event in session.push(recording) + session.close() if isinstance(event, Final)
        ]
    assert set(" ".join(finals).split()) == {"a", "b"}
    for ending in ("srt", "json", "vtt"):
        transcript.save(tmp_path / f"talk.{ending}")
    assert sottovoce.Transcript.load(tmp_path / "talk.json").text == transcript.text


def test_keywords_are_hotwords(recording: np.ndarray) -> None:
    plain = model().transcribe(recording).text.split()
    phrases = {"bb": 4.0}
    boosted = model().transcribe(recording, fusion=model().fusion(hotwords=phrases)).text.split()
    assert boosted.count("bb") > plain.count("bb")


def test_a_whisper_model_has_its_head_as_a_network(tmp_path: Path) -> None:
    nano = sottovoce.load_model("nano")
    head = sottovoce.load_model("ctc:nano")
    assert repr(head).startswith("CtcModel('ctc:nano'")
    samples = sottovoce.load_audio(CLIP)
    assert head.transcribe(CLIP).collect().words
    network = head.network
    (alone,), (together, other) = network.emissions([samples]), network.emissions([samples, samples])
    np.testing.assert_allclose(alone, together, atol=1e-4)
    np.testing.assert_allclose(alone, other, atol=1e-4)
    with pytest.raises(OptionError, match="expected one of this Whisper model's"):
        nano.transcribe(samples, fusion=head.fusion())


def test_less_than_a_frame_has_no_text() -> None:
    assert model().transcribe(np.zeros(HOP - 1, np.float32)).collect().segments == ()


@pytest.fixture
def onnx(tmp_path: Path) -> Path:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    shutil.copy(Path(__file__).with_name("letters.onnx"), tmp_path)
    (tmp_path / "letters.toml").write_text(ONNX)
    return tmp_path / "letters.toml"


STREAM = """model = "stream.onnx"
labels = ["-", "a", "b", "|"]
frame_ms = 20
samples = "audio"
output = "logits"
logits = true
chunk_ms = 160
states = { state = "next_state" }
"""


def streaming(kind: str, folder: Path) -> tuple[CtcModel, Callable[[np.ndarray], np.ndarray]]:
    """Return a network with a state, and a function that computes its emissions of a whole recording."""
    if kind == "function":

        def step(samples: np.ndarray, before: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
            """Add a tenth of the scores of the frame before to those of each."""
            rows = -8 * np.abs(8 * samples[::HOP, None] - np.arange(len(LABELS)))
            for row in rows:
                row += 0.0 if before is None else 0.1 * before
                before = row
            return rows, rows[-1]

        network = sottovoce.ctc_model(step, labels=LABELS, frame_s=0.02, chunk_s=0.02, logits=True)
        return network, lambda samples: log_softmax(step(samples, None)[0])
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    shutil.copy(Path(__file__).with_name("stream.onnx"), folder)
    (folder / "stream.toml").write_text(STREAM)
    session = onnxruntime.InferenceSession(folder / "stream.onnx")
    state = np.zeros((1, 1, 6), np.float32)
    return sottovoce.ctc_model(folder / "stream.toml"), lambda samples: log_softmax(
        session.run(["logits"], {"audio": samples[None], "state": state})[0][0]
    )


@pytest.mark.parametrize("kind", ["onnx", "function"])
def test_a_network_with_a_state_streams_what_it_reads_in_the_whole(
    kind: str, recording: np.ndarray, tmp_path: Path
) -> None:
    model, whole = streaming(kind, tmp_path)
    recording = recording[: 1197 * HOP]  # the last chunk is not full
    expected = whole(recording)
    pieces = [AudioChunk(recording[at : at + 3001], at) for at in range(0, len(recording), 3001)]
    np.testing.assert_allclose(model.network.whole_emissions(pieces), expected, atol=1e-4)
    np.testing.assert_allclose(model.network.emissions([recording])[0], expected, atol=1e-4)
    transcript = model.transcribe(recording).collect()
    assert transcript.words
    with model.session(vad=False) as session:
        events = [event for piece in pieces for event in session.push(piece.samples)]
        events += session.close()
    words = [word for event in events if isinstance(event, Partial) for word in event.words]
    assert [word.word for word in words] == [word.word for word in transcript.words]


def test_an_onnx_file_is_read_as_its_description_says(onnx: Path) -> None:
    import onnxruntime

    samples = np.random.default_rng(0).standard_normal(10 * HOP + 7, np.float32)
    network = sottovoce.ctc_model(onnx, language="de").network
    assert (network.language, network.longest_s, network.frame_s) == ("de", 30.0, 0.02)
    (ours,) = network.emissions([samples])
    session = onnxruntime.InferenceSession(onnx.with_suffix(".onnx"))
    given = {"audio": samples[None], "length": np.array([len(samples)])}
    logits = torch.from_numpy(session.run(["logits"], given)[0][0])
    np.testing.assert_allclose(ours, logits.log_softmax(dim=1).numpy(), atol=1e-5)


def test_the_command_reads_recordings_with_the_decoder_of_the_network(
    onnx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (onnx.parent / "words.txt").write_text("b\nab\n")
    (onnx.parent / "decoder.toml").write_text('lexicon = "words.txt"')
    onnx.write_text(f'{ONNX}decoder = "decoder.toml"')
    assert run(["ctc", str(CLIP), "--model", str(onnx), "--beam-size", "4"]) == 0
    line = json.loads(capsys.readouterr().out)
    model = sottovoce.load_model(onnx)
    transcript = model.transcribe(CLIP, beam_size=4).collect()
    assert line["text"] == transcript.text
    assert set(transcript.text.split()) <= {"b", "ab"}
    assert line["words"][-1]["end"] == pytest.approx(transcript.words[-1].end, abs=1e-3)


def saved(kind: str, folder: Path) -> Path:
    """Save a small network of a class of transformers, with random weights and its processor."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    names = ["<pad>", "<s>", "</s>", "<unk>", "|", *"etaonis"]
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    convolutions = {
        "num_conv_pos_embedding_groups": 2,
        "num_conv_pos_embeddings": 8,
        "conv_dim": (16, 16),
        "conv_stride": (20, 16),
        "conv_kernel": (25, 16),
    }
    if kind in ("Parakeet", "GraniteSpeech5", "OmniASR"):
        tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
        pieces = ["<unk>", "▁the", "▁a", *"etaonis", "<pad>"]
        sizes = {"vocab_size": len(pieces), "pad_token_id": len(pieces) - 1}
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        unigram = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>"))
        tokenizer = transformers.ParakeetTokenizer(
            tokenizer_object=unigram, pad_token="<pad>", unk_token="<unk>"
        )
        if kind == "Parakeet":
            encoder = transformers.ParakeetEncoderConfig(
                **small, subsampling_conv_channels=16, num_mel_bins=80
            )
            config = transformers.ParakeetCTCConfig(**sizes, encoder_config=encoder)
            extractor = transformers.ParakeetFeatureExtractor(feature_size=80)
            processor = transformers.ParakeetProcessor(extractor, tokenizer)
        elif kind == "GraniteSpeech5":
            pytest.importorskip("torchaudio", reason="torchaudio is not installed")
            encoder = transformers.GraniteSpeech5EncoderConfig(
                **{**small, "num_hidden_layers": 2}, vocab_size=len(pieces)
            )
            config = transformers.GraniteSpeech5CTCConfig(**sizes, encoder_config=encoder)
            extractor = transformers.GraniteSpeech5FeatureExtractor()
            processor = transformers.GraniteSpeech5Processor(extractor, tokenizer)
        else:
            audio = transformers.OmniASRAudioConfig(**small, **convolutions)
            config = transformers.OmniASRCTCConfig(**sizes, audio_config=audio, blank_token_id=0)
            processor = transformers.OmniASRCTCProcessor(transformers.OmniASRFeatureExtractor(), tokenizer)
        getattr(transformers, f"{kind}ForCTC")(config).save_pretrained(folder)
        processor.save_pretrained(folder)
        return folder
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    config = getattr(transformers, f"{kind.removesuffix('-adapter')}Config")(
        **small,
        **convolutions,
        vocab_size=len(names),
        pad_token_id=0,
        num_feat_extract_layers=2,
        **({"adapter_attn_dim": 4} if kind.endswith("-adapter") else {}),
    )
    getattr(transformers, f"{kind.removesuffix('-adapter')}ForCTC")(config).save_pretrained(folder)
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    transformers.Wav2Vec2Processor(transformers.Wav2Vec2FeatureExtractor(), tokenizer).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "kind",
    [
        *("Wav2Vec2", "Wav2Vec2-adapter", "Hubert", "WavLM", "Data2VecAudio"),
        *("Parakeet", "GraniteSpeech5", "OmniASR"),
    ],
)
def test_classes_of_transformers_emit_what_transformers_computes(kind: str, tmp_path: Path) -> None:
    folder = saved(kind, tmp_path)
    from transformers import AutoModelForCTC, AutoProcessor

    model = sottovoce.ctc_model(folder, language="en")
    assert model.network.frame_s == (0.08 if kind in ("Parakeet", "GraniteSpeech5") else 0.02)
    pieces = [np.random.default_rng(seed).standard_normal(16_000, np.float32) / 9 for seed in range(2)]
    network, processor = AutoModelForCTC.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    blank = model.network.blank
    assert blank == (0 if kind == "OmniASR" else network.config.pad_token_id)
    for samples, ours in zip(pieces, model.network.emissions(pieces), strict=True):
        with torch.no_grad():
            logits = network(**processor([samples], sampling_rate=16_000, return_tensors="pt")).logits[0]
        np.testing.assert_allclose(ours, logits.log_softmax(dim=1).numpy(), atol=1e-4)
        np.testing.assert_allclose(ours, model.network.emissions([samples])[0], atol=1e-5)
        path = torch.unique_consecutive(logits.argmax(dim=1)).tolist()
        theirs = [token for token in path if token != blank]
        assert list(model.decoder().greedy(ours)[0].tokens) == theirs


def _spoiled(network: AcousticModel) -> str:
    with pytest.raises(InputError) as error:
        CtcModel(network).transcribe(np.zeros(40_000, np.float32)).collect()
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": LABELS[:3]}, "expected 3 labels in the last place, got 4"),
        ({"network": lambda windows: [rows * np.nan for rows in reads_levels(windows)]}, "got NaN"),
        ({"network": lambda windows: [rows + 9 for rows in reads_levels(windows)]}, "look like logits"),
        ({"network": lambda windows: []}, "expected emissions of 1 windows, got 0"),
        ({"network": lambda windows: None}, "expected a list of emissions (T, V), got NoneType"),
        (
            {"network": lambda samples, state: reads_levels([samples])[0], "chunk_s": 0.32},
            "expected emissions (T, V) and a state, got ndarray",
        ),
        ({"frame_s": 0.01, "longest_s": 1.0}, "expected about 100 frames of 0.01 s in 1 s, got 50"),
    ],
)
def test_networks_that_do_not_fit_are_named(change: dict[str, object], message: str) -> None:
    given = {"network": reads_levels, "labels": LABELS, "frame_s": 0.02, **change}
    model = sottovoce.ctc_model(given.pop("network"), **given)  # type: ignore[arg-type]
    assert message in _spoiled(model.network)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('samples = "sound"', "expected an input of letters.onnx (audio, length), got 'sound'"),
        ('output = "log_probs"', "expected an output of letters.onnx (logits, frames), got 'log_probs'"),
        ('model = "none.onnx"', "none.onnx: expected an ONNX network"),
        ('frame_ms = "20"', "letters.toml: frame_ms: expected a number, got '20'"),
        ('blank = "-"', "letters.toml: blank: expected a whole number or null, got '-'"),
        ('lengths = "none"', "expected an input of letters.onnx (audio, length), got 'none'"),
        ("frame_ms = 0", "frame_s: expected seconds above 0"),
        ("frames = 20", "letters.toml: expected no field 'frames'"),
        ("chunk_ms = 160", "letters.toml: expected both states and chunk_ms, or neither"),
        ('labels = "none.txt"', "none.txt: no such file; expected labels"),
    ],
)
def test_descriptions_with_faults_are_named(line: str, message: str, onnx: Path) -> None:
    key = line.partition(" ")[0]
    kept = [each for each in ONNX.splitlines() if not each.startswith(f"{key} ")]
    onnx.write_text("\n".join([*kept, line]))
    with pytest.raises(SottovoceError) as error:
        sottovoce.ctc_model(onnx)
    assert message in str(error.value)


def test_a_description_names_every_input(onnx: Path) -> None:
    onnx.write_text(ONNX.replace('lengths = "length"\n', ""))
    expected = r"the name of every input of letters.onnx \(audio, length\), got none of length"
    with pytest.raises(OptionError, match=expected):
        sottovoce.ctc_model(onnx)


def test_what_a_file_says_is_no_argument(onnx: Path) -> None:
    with pytest.raises(OptionError, match="expected no labels, blank, frame_s, chunk_s or logits"):
        sottovoce.ctc_model(onnx, labels=LABELS)
    with pytest.raises(OptionError, match="expected labels and frame_s with a function"):
        sottovoce.ctc_model(reads_levels)
    with pytest.raises(OptionError, match="ctc_model: expected a function, a file or a name, got 5"):
        sottovoce.ctc_model(5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="labels: expected a path, names or a processor, got 5"):
        sottovoce.ctc_model(reads_levels, labels=5, frame_s=0.02)  # type: ignore[arg-type]


def test_a_beam_of_nothing_is_an_error() -> None:
    with pytest.raises(OptionError, match="beam_size: expected at least 1, got 0"):
        model().transcribe(np.zeros(9, np.float32), beam_size=0)


def test_a_missing_description_is_named_before_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(OptionError, match=r"nowhere\.toml.*: no such file; expected a description"):
        sottovoce.load_model("nowhere.toml")
