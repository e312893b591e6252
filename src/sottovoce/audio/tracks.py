"""The audio tracks of a container, and the choice of one.

Films have a track for each language, meetings one for each microphone. Tracks are counted from 1, as players
count them; languages are compared by their codes, in any of the standards: `de`, `ger` and `deu` are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sottovoce.errors import AudioError, OptionError

UNKNOWN = ("", "und", "unk", "mis", "zxx", "mul")
"""Tags that name no language."""
_CODES = """
aa:aar ab:abk af:afr ak:aka am:amh an:arg ar:ara as:asm av:ava ay:aym az:aze ba:bak be:bel bg:bul bi:bis
bm:bam bn:ben bo:bod,tib br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre cs:ces,cze cu:chu cv:chv
cy:cym,wel da:dan de:deu,ger dv:div dz:dzo ee:ewe el:ell,gre en:eng eo:epo es:spa et:est eu:eus,baq
fa:fas,per ff:ful fi:fin fj:fij fo:fao fr:fra,fre fy:fry ga:gle gd:gla gl:glg gn:grn gu:guj gv:glv ha:hau
he:heb hi:hin ho:hmo hr:hrv ht:hat hu:hun hy:hye,arm hz:her ia:ina id:ind ie:ile ig:ibo ii:iii ik:ipk io:ido
is:isl,ice it:ita iu:iku ja:jpn jw:jav,jv ka:kat,geo kg:kon ki:kik kj:kua kk:kaz kl:kal km:khm kn:kan ko:kor
kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir la:lat lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit lu:lub lv:lav
mg:mlg mh:mah mi:mri,mao mk:mkd,mac ml:mal mn:mon mr:mar ms:msa,may mt:mlt my:mya,bur na:nau nb:nob nd:nde
ne:nep ng:ndo nl:nld,dut nn:nno no:nor nr:nbl nv:nav ny:nya oc:oci oj:oji om:orm or:ori os:oss pa:pan pi:pli
pl:pol ps:pus pt:por qu:que rm:roh rn:run ro:ron,rum ru:rus rw:kin sa:san sc:srd sd:snd se:sme sg:sag si:sin
sk:slk,slo sl:slv sm:smo sn:sna so:som sq:sqi,alb sr:srp,scc ss:ssw st:sot su:sun sv:swe sw:swa ta:tam
te:tel tg:tgk th:tha ti:tir tk:tuk tl:tgl,fil tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ty:tah ug:uig uk:ukr
ur:urd uz:uzb ve:ven vi:vie vo:vol wa:wln wo:wol xh:xho yi:yid yo:yor yue:yue za:zha zh:zho,chi,cmn zu:zul
"""
_SHORT = {
    long: short
    for short, _, others in (entry.partition(":") for entry in _CODES.split())
    for long in others.split(",")
}
"""Codes of three letters, both kinds, by that of Whisper. Source: ISO 639-1 and 639-2."""


@dataclass(frozen=True, slots=True)
class AudioTrack:
    """One audio track; number: from 1. language, title: its tags, None where it has none."""

    number: int
    language: str | None = None
    title: str | None = None

    def __str__(self) -> str:
        tags = [self.language] if self.language else []
        tags += [f"'{self.title}'"] if self.title else []
        return f"{self.number} ({', '.join(tags)})" if tags else str(self.number)


ONLY_TRACK = AudioTrack(1)


def language_code(tag: str) -> str:
    """Convert a language tag to Whisper's code, where it has one: de of ger, deu, de-AT and DE."""
    primary = tag.strip().lower().replace("_", "-").partition("-")[0]
    return _SHORT.get(primary, primary)


def track_named(tracks: Sequence[AudioTrack], request: int | str, name: str) -> AudioTrack:
    """Choose the track of a number, or the first one in a language.

    name: of the recording, in messages.
    Raises: AudioError that lists the tracks; OptionError for a request that is neither.
    """
    number = _number(request)
    if number is None:
        code = language_code(str(request))
        if not code.isalpha():
            raise OptionError(f"audio track: expected a number from 1 or a language, got '{request}'")
        found = [one for one in tracks if one.language and language_code(one.language) == code]
    else:
        found = [one for one in tracks if one.number == number]
    if not found:
        there = ", ".join(map(str, tracks))
        raise AudioError(f"{name}: expected an audio track among {there}; got '{request}'")
    return found[0]


def _number(request: int | str) -> int | None:
    text = str(request).strip()
    if not text.lstrip("-").isdecimal() or not text.isascii():
        return None
    if int(text) < 1:
        raise OptionError(f"audio track: expected a number from 1 or a language, got '{request}'")
    return int(text)
