"""Whisper's languages: codes in token order, English names, look-up, and the punctuation of their scripts.

Source: `LANGUAGES` in openai-whisper 20250625, `whisper/tokenizer.py`. Not ISO 639-1: `jw` (ISO: jv), `haw`
and `yue`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from sottovoce.errors import OptionError

SENTENCE_ENDS = tuple(".!?。！？…؟।")
CLAUSE_ENDS = tuple(",;:，、；：،؛–—")
CLOSING_MARKS = "\"'”’»)]）」』"
"""Quotation marks and brackets that may follow the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Language:
    """Names are English, aliases in lower case."""

    code: str
    name: str
    aliases: tuple[str, ...] = ()


_TABLE = """
en English | zh Chinese,mandarin | de German | es Spanish,castilian | ru Russian | ko Korean | fr French
ja Japanese | pt Portuguese | tr Turkish | pl Polish | ca Catalan,valencian | nl Dutch,flemish | ar Arabic
sv Swedish | it Italian | id Indonesian | hi Hindi | fi Finnish | vi Vietnamese | he Hebrew,iw
uk Ukrainian | el Greek | ms Malay | cs Czech | ro Romanian,moldavian,moldovan | da Danish | hu Hungarian
ta Tamil | no Norwegian,nb,bokmål,bokmal | th Thai | ur Urdu | hr Croatian | bg Bulgarian | lt Lithuanian
la Latin | mi Maori | ml Malayalam | cy Welsh | sk Slovak | te Telugu | fa Persian,farsi | lv Latvian
bn Bengali,bangla | sr Serbian | az Azerbaijani | sl Slovenian | kn Kannada | et Estonian | mk Macedonian
br Breton | eu Basque | is Icelandic | hy Armenian | ne Nepali | mn Mongolian | bs Bosnian | kk Kazakh
sq Albanian | sw Swahili | gl Galician | mr Marathi | pa Punjabi,panjabi | si Sinhala,sinhalese | km Khmer
sn Shona | yo Yoruba | so Somali | af Afrikaans | oc Occitan | ka Georgian | be Belarusian | tg Tajik
sd Sindhi | gu Gujarati | am Amharic | yi Yiddish | lo Lao | uz Uzbek | fo Faroese
ht Haitian Creole,haitian | ps Pashto,pushto | tk Turkmen | nn Nynorsk | mt Maltese | sa Sanskrit
lb Luxembourgish,letzeburgesch | my Myanmar,burmese | bo Tibetan | tl Tagalog,filipino | mg Malagasy
as Assamese | tt Tatar | haw Hawaiian | ln Lingala | ha Hausa | ba Bashkir | jw Javanese,jv | su Sundanese
yue Cantonese
"""


_ENTRIES = [entry.strip().split(" ", 1) for entry in _TABLE.strip().replace("\n", "|").split("|")]
LANGUAGES: tuple[Language, ...] = tuple(
    Language(code, name, tuple(aliases)) for code, names in _ENTRIES for name, *aliases in [names.split(",")]
)
"""All 100, in the order of the language tokens; the 99-language vocabulary lacks the last, `yue`."""
_CODES = tuple(language.code for language in LANGUAGES)
_ISO = """
aa:aar ab:abk af:afr ak:aka am:amh an:arg ar:ara,arb as:asm av:ava ay:aym az:aze,azj ba:bak be:bel bg:bul
bi:bis bm:bam bn:ben bo:bod,tib br:bre bs:bos ca:cat ce:che ch:cha co:cos cr:cre cs:ces,cze cu:chu cv:chv
cy:cym,wel da:dan de:deu,ger dv:div dz:dzo ee:ewe el:ell,gre en:eng eo:epo es:spa et:est,ekk eu:eus,baq
fa:fas,per,pes,prs ff:ful fi:fin fj:fij fo:fao fr:fra,fre fy:fry ga:gle gd:gla gl:glg gn:grn gu:guj gv:glv
ha:hau he:heb hi:hin ho:hmo hr:hrv,scr ht:hat hu:hun hy:hye,arm hz:her ia:ina id:ind,in ie:ile ig:ibo ii:iii
ik:ipk io:ido is:isl,ice it:ita iu:iku ja:jpn jw:jav,jv ka:kat,geo kg:kon ki:kik kj:kua kk:kaz kl:kal km:khm
kn:kan ko:kor kr:kau ks:kas ku:kur kv:kom kw:cor ky:kir la:lat lb:ltz lg:lug li:lim ln:lin lo:lao lt:lit
lu:lub lv:lav,lvs mg:mlg,plt mh:mah mi:mri,mao mk:mkd,mac ml:mal mn:mon,khk mr:mar ms:msa,may,zsm,zlm mt:mlt
my:mya,bur na:nau nb:nob nd:nde ne:nep,npi ng:ndo nl:nld,dut nn:nno no:nor nr:nbl nv:nav ny:nya oc:oci
oj:oji om:orm or:ori os:oss pa:pan pi:pli pl:pol ps:pus,pbt pt:por qu:que rm:roh rn:run ro:ron,rum,mol,mo
ru:rus rw:kin sa:san sc:srd sd:snd se:sme sg:sag si:sin sk:slk,slo sl:slv sm:smo sn:sna so:som
sq:sqi,alb,als sr:srp,scc ss:ssw st:sot su:sun sv:swe sw:swa,swh ta:tam te:tel tg:tgk th:tha ti:tir tk:tuk
tl:tgl,fil tn:tsn to:ton tr:tur ts:tso tt:tat tw:twi ty:tah ug:uig uk:ukr ur:urd uz:uzb,uzn ve:ven vi:vie
vo:vol wa:wln wo:wol xh:xho yi:yid,ydd,ji yo:yor yue:yue za:zha zh:zho,chi,cmn zu:zul
"""
_SHORT = {
    long: short
    for short, _, others in (entry.partition(":") for entry in _ISO.split())
    for long in others.split(",")
}
"""Whisper's code, or that of ISO 639-1, by other codes: withdrawn ones, both kinds of 639-2, and of 639-3 the
most spoken language of a group, such as `arb` for Arabic.
"""
_TAG = re.compile(r"([a-z]{2,8})(-[a-z0-9]{1,8})*", re.ASCII)
"""A BCP 47 tag or hyphenated locale: a language, then script, region and variants."""

UNSPACED: frozenset[str] = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages written without spaces, whose word times are per character."""
UNSPACED_LETTERS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
"""Regular-expression ranges: Han, kana, Thai, Lao, Myanmar, Khmer, and half-width kana."""


def language_codes(n_languages: int = 100) -> tuple[str, ...]:
    """Return the codes of the first languages, in token order. Raises: OptionError outside 0 to 100."""
    if not 0 <= n_languages <= len(LANGUAGES):
        raise OptionError(f"number of languages: expected 0 to {len(LANGUAGES)}, got {n_languages}")
    return _CODES[:n_languages]


def language_code(tag: str) -> str | None:
    """Return the short code of a name or tag: "de" for "German", "deu", "ger", "DE", "de-AT"; or None."""
    text = tag.strip().casefold()
    named = _by_name().get(text)
    if named is not None:
        return named.code
    match = _TAG.fullmatch(text.partition(".")[0].replace("_", "-"))  # locales: de_DE.UTF-8
    if match is None or ("-" in match[0] and len(match[1]) > 3):
        return None
    primary, *rest = (_SHORT.get(part, part) for part in match[0].split("-"))
    if rest and rest[0] in _CODES and len(rest[0]) == 3:  # zh-yue: a language within another
        primary = rest[0]
    return _by_name()[primary].code if primary in _by_name() else primary


def language_name(code: str) -> str:
    """Return the English name of a language, found as by `find_language`."""
    return _find(code).name


def find_language(text: str, among: tuple[str, ...] | None = None) -> str:
    """Return Whisper's code for a code (pt, por), tag (pt-BR, zh_Hans), English name or alias.

    among: allowed codes; None: all 100. Raises: OptionError, naming the closest names, for any other.
    """
    code = _find(text).code
    if among is not None and code not in among:
        supported = ", ".join(among) if len(among) <= 8 else f"{len(among)} languages without it"
        raise OptionError(f"language '{text}': this model knows {supported or 'English only'}")
    return code


@lru_cache(maxsize=512)
def _find(text: str) -> Language:
    language = _by_name().get(language_code(text) or "")
    if language is None:
        expected = "a code such as 'en' or 'pt-BR', or an English name"
        raise OptionError(f"language '{text}': expected {expected}{_hint(text)}")
    return language


@cache
def _by_name() -> dict[str, Language]:
    return {
        name.casefold(): language
        for language in LANGUAGES
        for name in (language.code, language.name, *language.aliases)
    }


def _hint(text: str) -> str:
    wanted = text.strip().casefold()
    names = _by_name()
    close = difflib.get_close_matches(wanted, names, n=3)
    if not close:
        return ""
    shown = [f"'{n}'" if n == names[n].code else f"'{n}' ({names[n].code})" for n in close]
    return f"; did you mean {' or '.join(shown)}?"


@dataclass(frozen=True, slots=True)
class LanguageChoice:
    """The possible languages of a recording: the only one, or those allowed (empty means all)."""

    fixed: str | None
    allowed: tuple[str, ...]

    @classmethod
    def parse(cls, value: str | Sequence[str] | None, available: Sequence[str]) -> LanguageChoice:
        """Parse "auto" (None), "en", "English", "en,de" or a list. available: codes of the model.

        Raises: OptionError for other languages, and for an empty list.
        """
        if value is not None and not isinstance(value, Sequence):
            raise OptionError(f"language: expected a code, a name or a list of them, got {value!r}")
        words = (value or "auto").split(",") if isinstance(value, str) or value is None else list(value)
        if other := [word for word in words if not isinstance(word, str)]:
            raise OptionError(f"language: expected codes or names, got {other[0]!r}")
        names = [word.strip() for word in words if word.strip()]
        if names == ["auto"]:
            return cls(None, ())
        codes = tuple(dict.fromkeys(find_language(name, tuple(available)) for name in names))
        if not codes:
            raise OptionError("language: expected 'auto' or at least one language, got none")
        return cls(codes[0], ()) if len(codes) == 1 else cls(None, codes)
