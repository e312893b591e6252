// A text that somebody corrected, as words with times again. Words that stand there as before keep theirs; what is new
// in between shares the time of what it replaces, by its letters.

const LETTER = "[\\p{Script=Latin}\\p{Script=Greek}\\p{Script=Cyrillic}\\p{N}]"; // of words with spaces between them
const IS_LETTER = new RegExp(LETTER, "u");

// words: [{word, start, end, language, speaker}]. Returns other words with that text.
export function retimed(words, text) {
  const wanted = text.replace(/\s+/g, " ").trim();
  if (!wanted) return [];
  const own = words.map(({ word }, i) => (i ? word : word.trimStart()));
  const before = beginningOf(own, wanted);
  const rest = wanted.slice(own.slice(0, before).join("").length);
  const [after, end] = endOf(own.slice(before), rest, wanted.length - rest.length);
  const middle = rest.slice(0, end);
  const fresh = shared(middle, words.slice(before, words.length - after), { before: words[before - 1], after: words[words.length - after] });
  return [...words.slice(0, before), ...fresh, ...words.slice(words.length - after)];
}

// How many words at the beginning stand in the text as they are, whole.
function beginningOf(own, text) {
  let [n, at] = [0, 0];
  while (n < own.length && text.startsWith(own[n], at)) {
    const end = at + own[n].length;
    const isWhole = end === text.length || /\s/.test(text[end]) || (n + 1 < own.length && text.startsWith(own[n + 1], end));
    if (!isWhole) break;
    [n, at] = [n + 1, end];
  }
  return n;
}

// How many words at the end do, and where the first of them begins.
function endOf(own, text, nBefore) {
  let [n, end] = [0, text.length];
  while (n < own.length && end > 0) {
    const word = own[own.length - 1 - n];
    if (!nBefore && text.slice(0, end) === word.trimStart()) return [n + 1, 0]; // the first of all, whose space is gone
    const at = end - word.length;
    if (at < 0 || text.slice(at, end) !== word) break;
    const isWhole = /^\s/.test(word) || at + nBefore === 0 || !IS_LETTER.test(text[at - 1] ?? "") || !IS_LETTER.test(word[0] ?? "");
    if (!isWhole) break;
    [n, end] = [n + 1, at];
  }
  return [n, end];
}

// Words of a text in the time of those that they replace; where these are none, between their neighbours.
function shared(text, old, { before, after }) {
  const pieces = text.match(/\s*\S+/g) ?? [];
  if (!pieces.length) return [];
  const start = old[0]?.start ?? before?.end ?? after.start;
  const end = Math.max(start, old.at(-1)?.end ?? after?.start ?? before.end);
  const whole = pieces.reduce((sum, piece) => sum + piece.length, 0);
  let done = 0;
  return pieces.map((word) => {
    const at = (letters) => start + ((end - start) * letters) / whole;
    const [from, to] = [at(done), at((done += word.length))];
    const like = old.find((one) => one.end > (from + to) / 2) ?? old.at(-1) ?? before ?? after;
    return { word, start: from, end: to, probability: 1, language: like.language, speaker: like.speaker };
  });
}

// The words with every `from` replaced; null where there is none.
export function replaced(words, from, to) {
  const text = words.map(({ word }) => word).join("").trim();
  const found = text.replace(pattern(from), () => to);
  return found === text ? null : retimed(words, found);
}

// Whole words where it begins and ends with letters; capitals count.
export function pattern(text) {
  const escaped = text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s+/g, "\\s+");
  const [head, tail] = [text[0], text.at(-1)].map((letter) => IS_LETTER.test(letter ?? ""));
  return new RegExp(`${head ? `(?<!${LETTER})` : ""}${escaped}${tail ? `(?!${LETTER})` : ""}`, "gu");
}
