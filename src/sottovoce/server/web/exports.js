// A transcript as text and as JSON; every other format is made by the server of the JSON. An utterance: {id, start, end,
// language, words: [{word, start, end, …}], translation: {text, language}, committed}, the last two where there are some:
// committed is the text before a second pass.

export function textOf(words) {
  return words.map(({ word }) => word).join("").trim();
}

export function asText(utterances) {
  return turnsOf(utterances)
    .map(({ words, translation }) => `${words[0]?.speaker ? `${words[0].speaker}: ` : ""}${textOf(words)}\n${translation ? `${translation.text}\n` : ""}`)
    .join("");
}

// Utterances of one speaker each; a translation stays with the last part of its utterance.
export function turnsOf(utterances) {
  return utterances.flatMap((utterance) => {
    const turns = [];
    for (const word of utterance.words) {
      if (turns.length && turns.at(-1)[0].speaker === word.speaker) turns.at(-1).push(word);
      else turns.push([word]);
    }
    return turns.map((words, i) => {
      const [isFirst, isLast] = [i === 0, i === turns.length - 1];
      const start = isFirst ? utterance.start : words[0].start;
      const end = isLast ? utterance.end : words.at(-1).end;
      return { ...utterance, start, end, words, speaker: words[0].speaker, translation: isLast ? utterance.translation : null, committed: isFirst ? utterance.committed : null };
    });
  });
}

export function asJson(utterances, { model, duration }) {
  const seconds = {};
  for (const { language, start, end } of utterances) seconds[language] = (seconds[language] ?? 0) + end - start;
  const spokenMost = Object.keys(seconds).sort((a, b) => seconds[b] - seconds[a])[0] ?? "";
  const segments = utterances.map(({ start, end, language, speaker, words, translation, committed }, id) => ({
    id,
    start: round(start),
    end: round(end),
    text: textOf(words),
    language,
    ...(speaker ? { speaker } : {}),
    ...(translation ? { translation: translation.text } : {}),
    ...(committed ? { committed } : {}),
    words: words.map((word) => ({ ...word, start: round(word.start), end: round(word.end) })),
  }));
  const text = segments.map((segment) => segment.text).join(" ");
  return `${JSON.stringify({ text, language: spokenMost, duration: round(duration), model, segments }, null, 1)}\n`;
}

function round(seconds) {
  return Math.round(seconds * 1000) / 1000;
}
