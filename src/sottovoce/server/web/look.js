// How a caption view looks, from its address. What cannot be read is the default: a view on air shows no errors.

const HEX = /^#?([0-9a-f]{3}|[0-9a-f]{4}|[0-9a-f]{6}|[0-9a-f]{8})$/i;
const NAMED = /^[a-z]+$/i;

export const MOST_LINES = 3;

// query: URLSearchParams. Returns {lines, size, color, box, background, font, align, position, languages, translation,
// speakers, unstable, hold}; size: CSS; box "none": letters are outlined; hold: seconds until old text goes, 0: never.
export function lookOf(query) {
  const one = (name, among) => (among.includes(query.get(name)) ? query.get(name) : among[0]);
  const number = (name, least, most, otherwise) => {
    const value = query.get(name) ? Number(query.get(name)) : NaN;
    return value >= least && value <= most ? value : otherwise;
  };
  const size = number("size", 8, 400, null);
  return {
    lines: Math.round(number("lines", 1, MOST_LINES, 2)),
    size: size ? `${size}px` : "clamp(18px, 4.4vw, 96px)",
    color: colour(query.get("color"), "#ffffff"),
    box: query.get("box") === "none" ? "none" : colour(query.get("box"), "#000000b8"),
    background: colour(query.get("background"), "transparent"),
    font: (query.get("font") ?? "").replace(/[^\p{L}\p{N} ,\-]/gu, "").slice(0, 200),
    align: one("align", ["center", "left", "right"]),
    position: one("position", ["bottom", "middle", "top"]),
    languages: (query.get("language") ?? "").toLowerCase().split(",").map((code) => code.trim()).filter(Boolean),
    translation: one("translation", ["on", "off", "only"]),
    speakers: query.get("speakers") === "true",
    unstable: query.get("unstable") !== "false",
    hold: number("hold", 0, 3600, 10),
  };
}

function colour(value, otherwise) {
  if (HEX.test(value ?? "")) return `#${value.replace("#", "")}`;
  return value && NAMED.test(value) && CSS.supports("color", value) ? value : otherwise;
}

// What of an utterance is shown: [{text, language, isUnstable, speaker}], by the languages and the translation wanted.
export function shownOf(utterance, look) {
  const { languages, translation, unstable } = look;
  const isWanted = (language) => !languages.length || languages.includes(language);
  const said = runsOf(utterance.words).filter(({ language }) => isWanted(language));
  const open = utterance.unstable;
  if (unstable && open && isWanted(open.language)) said.push({ text: open.text, language: open.language, isUnstable: true });
  const other = utterance.translation;
  const translated = other && isWanted(other.language) && translation !== "off" ? [{ ...other, isTranslation: true }] : [];
  if (translation === "only" && other) return translated;
  // Where one language is wanted, the translation into it stands in the place of what was said in another.
  return [...said, ...translated];
}

function runsOf(words) {
  const found = [];
  for (const { word, language, speaker } of words) {
    const last = found.at(-1);
    if (last?.language === language && last.speaker === speaker) last.text += word;
    else found.push({ text: word, language, speaker });
  }
  return found;
}
