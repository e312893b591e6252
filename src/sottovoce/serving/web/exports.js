// A transcript as text, subtitles and JSON. An utterance: {id, start, end, language, words: [{word, start, end, …}],
// translation: {text, language}}, the last where there is one: it stands under what was said.

const CUE_S = 6;
const CUE_LETTERS = 84;
const SENTENCE_END = /[.!?。！？…]["'”’»)]*$/u;

export function textOf(words) {
  return words.map(({ word }) => word).join("").trim();
}

export function asText(utterances) {
  return utterances.flatMap(({ words, translation }) => [...turnsOf(words).map(lineOf), translation ? `${translation.text}\n` : ""]).join("");
}

function lineOf(turn) {
  return `${turn[0].speaker ? `${turn[0].speaker}: ` : ""}${textOf(turn)}\n`;
}

// Words of one speaker that follow each other, where they are known.
function turnsOf(words) {
  const turns = [];
  for (const word of words) {
    if (turns.length && turns.at(-1)[0].speaker === word.speaker) turns.at(-1).push(word);
    else turns.push([word]);
  }
  return turns;
}

export function asSubRip(utterances) {
  const times = (cue) => `${clock(cue[0].start)} --> ${clock(cue.at(-1).end)}`;
  return subtitles(utterances).map(({ cue, lines }, i) => `${i + 1}\n${times(cue)}\n${lines.join("\n")}\n\n`).join("");
}

export function asVtt(utterances) {
  const times = (cue) => `${clock(cue[0].start)} --> ${clock(cue.at(-1).end)}`.replaceAll(",", ".");
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const voice = ([{ speaker }]) => (speaker ? `<v ${escaped(speaker)}>` : "");
  const cues = subtitles(utterances).map(({ cue, lines }) => `${times(cue)}\n${voice(cue)}${escaped(lines.join("\n"))}\n`);
  return ["WEBVTT\n", ...cues].join("\n");
}

// A paragraph for each turn, with its time and who spoke; translations are quoted below.
export function asMarkdown(utterances, { title }) {
  const plain = (text) => text.replace(/[\\`*_[\]<>#|]/g, "\\$&");
  const paragraphs = paragraphsOf(utterances).flatMap(({ start, speaker, text, translation }) => [
    `**${speaker ? `${plain(speaker)}, ` : ""}${time(start)}** ${plain(text)}\n`,
    ...(translation ? [`> ${plain(translation)}\n`] : []),
  ]);
  return [`# ${plain(title)}\n`, ...paragraphs].join("\n");
}

// Turns as they are read: {start, speaker, text, language, translation}.
export function paragraphsOf(utterances) {
  return utterances.flatMap(({ words, translation }) => {
    const turns = turnsOf(words);
    return turns.map((turn, i) => ({
      start: turn[0].start,
      speaker: turn[0].speaker ?? "",
      text: textOf(turn),
      language: turn[0].language,
      translation: i === turns.length - 1 ? (translation?.text ?? "") : "",
    }));
  });
}

export function time(seconds) {
  return clock(seconds).slice(seconds < 3600 ? 3 : 0, 8);
}

// Cues of words with their lines: what was said, and its part of the translation. A cue is of one speaker.
function subtitles(utterances) {
  return utterances.flatMap(({ words, translation }) => {
    const said = turnsOf(words).flatMap(cuesOf);
    const parts = sharedOut(translation?.text ?? "", said.map((cue) => textOf(cue).length));
    return said.map((cue, i) => ({ cue, lines: [textOf(cue), parts[i]].filter(Boolean) }));
  });
}

// A translation in as many parts as there are cues, by their lengths: cut between words, or letters where there are none.
function sharedOut(text, lengths) {
  const pieces = text.match(/\s/) ? text.split(/(?<=\s)/) : [...text];
  const whole = lengths.reduce((sum, length) => sum + length, 0);
  const parts = lengths.map(() => "");
  let [cue, until, at] = [0, lengths[0], 0];
  for (const piece of pieces) {
    while (cue < lengths.length - 1 && ((at + piece.length / 2) / text.length) * whole > until) until += lengths[++cue];
    parts[cue] += piece;
    at += piece.length;
  }
  return parts.map((part) => part.trim());
}

// Words in cues that can be read: no longer than the limits, and cut after sentences.
function cuesOf(words) {
  const cues = [];
  let cue = [];
  for (const word of words) {
    const tooLong = cue.length && (word.end - cue[0].start > CUE_S || textOf([...cue, word]).length > CUE_LETTERS);
    if (tooLong) {
      cues.push(cue);
      cue = [];
    }
    cue.push(word);
    if (SENTENCE_END.test(word.word)) {
      cues.push(cue);
      cue = [];
    }
  }
  return cue.length ? [...cues, cue] : cues;
}

function clock(seconds) {
  const milliseconds = Math.round(seconds * 1000);
  const pad = (value, width = 2) => String(Math.floor(value)).padStart(width, "0");
  const minutes = Math.floor(milliseconds / 60000);
  return `${pad(minutes / 60)}:${pad(minutes % 60)}:${pad((milliseconds % 60000) / 1000)},${pad(milliseconds % 1000, 3)}`;
}

export function asJson(utterances, { model, duration }) {
  const seconds = {};
  for (const { language, start, end } of utterances) seconds[language] = (seconds[language] ?? 0) + end - start;
  const spokenMost = Object.keys(seconds).sort((a, b) => seconds[b] - seconds[a])[0] ?? "";
  const segments = utterances.map(({ start, end, language, words, translation }, id) => ({
    id,
    start: round(start),
    end: round(end),
    text: textOf(words),
    language,
    ...(translation ? { translation: translation.text } : {}),
    words: words.map((word) => ({ ...word, start: round(word.start), end: round(word.end) })),
  }));
  const text = segments.map((segment) => segment.text).join(" ");
  return `${JSON.stringify({ text, language: spokenMost, duration: round(duration), model, segments }, null, 1)}\n`;
}

function round(seconds) {
  return Math.round(seconds * 1000) / 1000;
}
