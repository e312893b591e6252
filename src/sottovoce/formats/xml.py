"""TTML, for television and streaming, and EAF, for the annotation program ELAN."""

from __future__ import annotations

import re
from html import escape

from sottovoce.formats.base import TranscriptInfo
from sottovoce.formats.plain import WholeWriter, speaker_tiers
from sottovoce.formats.subtitles import Cue, CueWriter, behind_speaker, milliseconds, timestamp

_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold."""
_UNDERLINED = re.compile("<u>(.*?)</u>", re.DOTALL)
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'


def xml_text(text: str) -> str:
    return escape(_INVALID.sub("\ufffd", text), quote=False)


def _quoted(text: str) -> str:
    return '"' + escape(_INVALID.sub("\ufffd", text)) + '"'


class TtmlWriter(CueWriter):
    """TTML of the profile IMSC 1.1 Text; each cue has the code of its language.

    Source: https://www.w3.org/TR/ttml-imsc1.1/.
    """

    extension = "ttml"

    def begin(self, info: TranscriptInfo) -> str:
        place, side = ("top", "before") if self.options.at_top else ("bottom", "after")
        return super().begin(info) + (
            f'{HEAD}<tt xmlns="http://www.w3.org/ns/ttml" xmlns:tts="http://www.w3.org/ns/ttml#styling"\n'
            '    xmlns:ttp="http://www.w3.org/ns/ttml#parameter" ttp:timeBase="media"\n'
            '    ttp:contentProfiles="http://www.w3.org/ns/ttml/profile/imsc1.1/text"\n'
            '    xml:lang="">\n'
            f'<head><layout><region xml:id="{place}" tts:origin="10% 10%" tts:extent="80% 80%"\n'
            f'    tts:displayAlign="{side}" tts:textAlign="center"/></layout></head>\n'
            f'<body region="{place}"><div>\n'
        )

    def escape(self, text: str) -> str:
        return xml_text(text)

    def render(self, cue: Cue) -> str:
        start, end = (timestamp(t, marker=".", hours=True) for t in (cue.start, cue.end))
        text = behind_speaker(cue.speaker and xml_text(cue.speaker), cue.text)
        text = _UNDERLINED.sub(r'<span tts:textDecoration="underline">\1</span>', text)
        code = f' xml:lang="{cue.language}"' if cue.language else ""
        return f'<p begin="{start}" end="{end}"{code}>{text.replace(chr(10), "<br/>")}</p>\n'

    def end(self, info: TranscriptInfo) -> str:
        return super().end(info) + "</div></body></tt>\n"


class EafWriter(WholeWriter):
    """ELAN's annotations: the tiers of `TextGridWriter`, without gaps; ELAN asks for the recording.

    Source: EAF 3.0, mpi.nl/tools/elan.
    """

    extension = "eaf"

    def end(self, info: TranscriptInfo) -> str:
        slots: list[str] = []
        tiers: list[str] = []
        for speaker, name, intervals in speaker_tiers(self._segments):
            annotations = []
            for start, end, text in intervals:
                n_slots, identifier = len(slots), len(slots) // 2
                slots += [
                    f'<TIME_SLOT TIME_SLOT_ID="ts{n_slots + place}" TIME_VALUE="{milliseconds(at)}"/>\n'
                    for place, at in enumerate((start, end))
                ]
                annotations.append(
                    f'<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a{identifier}" '
                    f'TIME_SLOT_REF1="ts{n_slots}" TIME_SLOT_REF2="ts{n_slots + 1}">'
                    f"<ANNOTATION_VALUE>{xml_text(text)}</ANNOTATION_VALUE>"
                    "</ALIGNABLE_ANNOTATION></ANNOTATION>\n"
                )
            who = f" PARTICIPANT={_quoted(speaker)}" if speaker else ""
            head = f'<TIER LINGUISTIC_TYPE_REF="text"{who} TIER_ID={_quoted(name)}>\n'
            tiers += [head, *annotations, "</TIER>\n"]
        return (
            f'{HEAD}<ANNOTATION_DOCUMENT AUTHOR="" DATE="1970-01-01T00:00:00Z" FORMAT="3.0" VERSION="3.0"\n'
            '    xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"\n'
            '    xsi:noNamespaceSchemaLocation="http://www.mpi.nl/tools/elan/EAFv3.0.xsd">\n'
            '<HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"/>\n'
            f"<TIME_ORDER>\n{''.join(slots)}</TIME_ORDER>\n{''.join(tiers)}"
            '<LINGUISTIC_TYPE GRAPHIC_REFERENCES="false" LINGUISTIC_TYPE_ID="text" TIME_ALIGNABLE="true"/>\n'
            "</ANNOTATION_DOCUMENT>\n"
        )
