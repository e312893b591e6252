"""What several options need, as conditions over the values of a call.

Keys are those of `Option.key`; `no_fallback` is there on the command line alone.
"""

from __future__ import annotations

from sottovoce.options.schema import Need, Values


def temperatures(values: Values) -> tuple[float, ...]:
    """Return the temperatures that are tried."""
    tried: tuple[float, ...] = values["temperature"]
    return tried[:1] if values.get("no_fallback") else tried


def _shown(values: Values) -> str:
    """Show the temperatures as they were requested."""
    if values.get("no_fallback"):
        return "--no-fallback"
    return f"--temperature {','.join(f'{one:g}' for one in values['temperature'])}"


def _n_hypotheses(values: Values) -> int:
    """Return the most hypotheses that one temperature has."""
    tried = temperatures(values)
    n_draws = (values.get("best_of") or 1) if any(tried) else 1
    n_beams = 1 if all(tried) else values["beam_size"] or 1
    return max(n_draws, n_beams)


def times_words(values: Values) -> bool:
    """Return whether words are timed: asked for, or since speakers are those of words."""
    tells_speakers = values.get("speakers") is not None or values.get("channels") == "energy"
    return bool(values.get("word_timestamps") or tells_speakers or values.get("tinydiarize"))


def has_earlier_text(values: Values) -> bool:
    """Return whether a window is given the text of the one before."""
    return bool(values["condition_on_previous_text"] and values["batch_size"] == 1)


def _no_earlier_text(values: Values) -> str:
    alone = "--batch-size" if values["condition_on_previous_text"] else "--no-condition-on-previous-text"
    return f"earlier text is not given with {alone}"


def is_initial_cut(values: Values) -> bool:
    """Return whether an initial prompt is given to the first window alone, where it may be too long."""
    return values["initial_prompt"] is not None and not values["carry_initial_prompt"]


DRAWS = Need(
    lambda values: f"draws are made at temperatures above 0, got {_shown(values)}",
    lambda values: any(temperatures(values)),
    when="typed",
)
BEAMS = Need(
    lambda values: f"the beam search works at temperature 0, got {_shown(values)}",
    lambda values: not all(temperatures(values)),
    when="typed",
)
SEVERAL_HYPOTHESES = Need(
    "ranks several hypotheses, got one", lambda values: _n_hypotheses(values) > 1, when="typed"
)
EARLIER_TEXT = Need(_no_earlier_text, has_earlier_text, when="typed")
EARLIER_TEXT_OR_PROMPT = Need(
    _no_earlier_text, lambda values: has_earlier_text(values) or is_initial_cut(values), when="typed"
)
WARMER = Need(
    "needs a temperature above 0 to be tried", lambda values: any(temperatures(values)), when="typed"
)
WORDS = Need("needs word_timestamps", times_words)
ALONE = Need(
    "expected alone, got --offset or --duration too",
    lambda v: v["offset"] is None and v["duration"] is None,
    when="given",
)
SEEKS = Need(
    "cannot be combined with --vad, its options and --batch-size", lambda v: v["mode"] == "seek", when="given"
)
JOINS_WORDS = Need("joins words; add --word-timestamps", times_words, when="given")
ROOM_FOR_PROMPT = Need(
    "needs --carry-initial-prompt or tokens, got --max-context 0",
    lambda v: v["carry_initial_prompt"] or v["max_context"] != 0,
    when="given",
)
SPEAKERS_OR_CHANNELS = Need(
    "needs --speakers or --channels",
    lambda v: v["speakers"] is not None or v["channels"] != "mixed",
    when="given",
)
VAD_MODE = Need(
    lambda v: f"needs mode 'vad', got '{v['mode']}'", lambda v: v["mode"] == "vad", with_value=True
)
WORDS_OF_SEEKING = Need(
    "needs word_timestamps and mode 'seek'", lambda v: times_words(v) and v["mode"] == "seek"
)
