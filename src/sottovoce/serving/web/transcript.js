// What was said, and how it is shown: finished utterances in a log that is read aloud, the one being spoken below.

import { textOf } from "./exports.js";

const COLOURS = 8;
const VOICES = 6;
const TURN_PAUSE_S = 0.6; // shorter ones belong to the turn

export class Transcript extends EventTarget {
  // log: gets utterances as they end. now: shows the one being spoken.
  constructor(log, now) {
    super();
    this.log = log;
    this.now = now;
    this.utterances = [];
    this.languages = [];
    this.voices = []; // every speaker ever told, in order of appearance: by that they keep their colours
    this.heard = new Set(); // speakers of finished utterances
    this.spans = []; // {start, end, language} of committed words, for the timeline
    this.names = new Intl.DisplayNames([navigator.language], { type: "language", fallback: "code" });
    this.current = null;
    this.told = new Map(); // finished utterances of this connection, by the server's numbers
  }

  get words() {
    return this.utterances.reduce((sum, { words }) => sum + words.length, this.current?.words.length ?? 0);
  }

  // Who has words, A before B before AA: a correction may take all of somebody's away.
  get speakers() {
    const speaking = (this.current?.words ?? []).map(({ speaker }) => speaker);
    const found = this.voices.filter((voice) => this.heard.has(voice) || speaking.includes(voice));
    return found.sort((a, b) => a.length - b.length || a.localeCompare(b));
  }

  // Who speaks when, {start, end, speaker}, as far as it is known, from some second on.
  turns(from) {
    const shown = this.utterances.filter(({ end }) => end > from);
    const words = [...shown, this.current ?? { words: [] }].flatMap((utterance) => utterance.words);
    const found = [];
    for (const { start, end, speaker } of words) {
      const last = found.at(-1);
      if (!speaker || end <= from) continue;
      if (last?.speaker === speaker && start - last.end < TURN_PAUSE_S) last.end = Math.max(last.end, end);
      else found.push({ start, end, speaker });
    }
    return found;
  }

  // An event of the server, at times `offset` seconds later than it says.
  take(message, offset) {
    if (message.type === "ready") this.told.clear();
    if (message.type === "partial") this.commit(message, offset);
    if (message.type === "translation") this.translate(message);
    if (message.type === "unstable") this.showUnstable(message);
    if (message.type === "final") this.close(message.words);
  }

  commit({ words, language, utterance }, offset) {
    this.current ??= { words: [], number: utterance };
    for (const word of words) {
      const placed = { ...word, language: word.language ?? language, start: word.start + offset, end: word.end + offset };
      this.current.words.push(placed);
      this.place(placed);
      this.note(placed);
    }
    this.unstable = null;
    this.render();
  }

  place({ start, end, language }) {
    const last = this.spans.at(-1);
    if (last?.language === language && start - last.end < 0.6) last.end = Math.max(last.end, end);
    else this.spans.push({ start, end, language });
  }

  note({ speaker }) {
    if (!speaker || this.voices.includes(speaker)) return;
    this.voices.push(speaker);
    this.dispatchEvent(new Event("speaker"));
  }

  showUnstable({ text, language }) {
    this.unstable = text ? { text, language } : null;
    this.render();
  }

  // What an utterance says in another language: its beginning while it grows, all of it after its end.
  translate({ utterance: number, text, language, final }) {
    const told = this.told.get(number);
    if (final && told) {
      told.element.querySelector(".translation")?.remove();
      if (text === textOf(told.utterance.words)) return; // it was said in that language
      told.utterance.translation = { text, language };
      told.element.append(this.translation({ text, language }));
      this.dispatchEvent(new Event("grown"));
    } else if (this.current?.number === number && this.current.words.at(-1).language !== language) {
      const before = this.current.translation ? `${this.current.translation.text} ` : "";
      this.current.translation = { text: before + text, language };
      this.render();
    }
  }

  // The utterance is whole: it moves into the log, and is announced there once. told: its words, whose speakers may
  // have been corrected.
  close(told = []) {
    const { words, number, translation } = this.current ?? { words: [] };
    if (told.length === words.length) words.forEach((word, i) => (word.speaker = told[i].speaker));
    words.forEach((word) => this.note(word));
    for (const { speaker } of words) if (speaker) this.heard.add(speaker);
    this.current = null;
    this.unstable = null;
    this.render();
    if (!words.length) return;
    const spoken = {};
    for (const { language } of words) spoken[language] = (spoken[language] ?? 0) + 1;
    const language = Object.keys(spoken).sort((a, b) => spoken[b] - spoken[a])[0];
    const utterance = { id: this.utterances.length, start: words[0].start, end: words.at(-1).end, language, words };
    this.utterances.push(utterance);
    const element = this.element(words);
    if (translation) element.append(this.translation(translation, true));
    this.log.append(element);
    this.told.set(number, { utterance, element });
    if (told.length) this.dispatchEvent(new Event("speaker"));
    this.dispatchEvent(new Event("grown"));
  }

  clear() {
    this.utterances = [];
    this.told.clear();
    this.voices = [];
    this.heard.clear();
    this.dispatchEvent(new Event("speaker"));
    this.spans = [];
    this.current = null;
    this.unstable = null;
    this.log.replaceChildren();
    this.render();
  }

  render() {
    const words = this.current?.words ?? [];
    if (!words.length && !this.unstable) {
      this.now.replaceChildren();
    } else {
      const element = this.element(words);
      if (this.unstable) {
        const said = element.querySelector(".said");
        const { text, language } = this.unstable;
        const span = this.span(words.length ? text : text.trimStart(), language, "unstable");
        said.append(span);
      }
      if (this.current?.translation) element.append(this.translation(this.current.translation, true));
      this.now.replaceChildren(element);
    }
    this.dispatchEvent(new Event("grown"));
  }

  // One utterance: its time, and runs of words of one language with a label each.
  element(words) {
    const element = document.createElement("p");
    element.className = "utterance";
    const time = document.createElement("time");
    time.textContent = words.length ? clock(words[0].start) : "";
    const said = document.createElement("span");
    said.className = "said";
    for (const { language, speaker, text, isApart, isTurn } of runs(words)) {
      if (isApart) said.append(" "); // outside of both: inside, it would go with the direction of its text
      if (isTurn && said.childElementCount) said.append(document.createElement("br"));
      if (isTurn) said.append(this.speakerLabel(speaker));
      said.append(this.label(language), this.span(text, language));
    }
    element.append(time, said);
    return element;
  }

  // The line under an utterance. isBeginning: the whole one replaces it, and is read aloud then.
  translation({ text, language }, isBeginning = false) {
    const line = document.createElement("span");
    line.className = isBeginning ? "translation unstable" : "translation";
    line.lang = language;
    line.dir = "auto";
    line.textContent = text;
    if (isBeginning) line.ariaHidden = "true";
    return line;
  }

  label(language) {
    const label = document.createElement("abbr");
    label.className = `label colour-${this.colour(language)}`;
    label.title = this.name(language);
    label.textContent = language;
    return label;
  }

  // Who speaks, before what is theirs.
  speakerLabel(speaker) {
    const label = document.createElement("b");
    label.className = `speaker voice-${this.voice(speaker)}`;
    label.title = `Speaker ${speaker}`;
    label.textContent = speaker;
    return label;
  }

  span(text, language, extra = "") {
    const span = document.createElement("span");
    span.className = `words colour-${this.colour(language)} ${extra}`.trim();
    if (language) span.lang = language;
    span.dir = "auto";
    span.textContent = text;
    return span;
  }

  name(language) {
    try {
      return this.names.of(language) ?? language;
    } catch {
      return language;
    }
  }

  // A number for every language, in order of appearance.
  colour(language) {
    if (!this.languages.includes(language)) {
      this.languages.push(language);
      this.dispatchEvent(new Event("language"));
    }
    return this.languages.indexOf(language) % COLOURS;
  }

  // A number for every speaker, in order of appearance.
  voice(speaker) {
    this.note({ speaker });
    return this.voices.indexOf(speaker) % VOICES;
  }
}

function runs(words) {
  const found = [];
  for (const { word, language, speaker } of words) {
    const last = found.at(-1);
    if (last && last.language === language && last.speaker === speaker) last.text += word;
    else found.push({ language, speaker, text: word });
  }
  return found.map(({ language, speaker, text }, i) => ({
    language,
    speaker,
    isTurn: Boolean(speaker) && found[i - 1]?.speaker !== speaker,
    text: text.trim(),
    isApart: i > 0 && (/\s$/.test(found[i - 1].text) || /^\s/.test(text)),
  }));
}

export function clock(seconds) {
  const whole = Math.floor(seconds);
  const rest = `${String(Math.floor(whole / 60) % 60).padStart(whole < 3600 ? 1 : 2, "0")}:${String(whole % 60).padStart(2, "0")}`;
  return whole < 3600 ? rest : `${Math.floor(whole / 3600)}:${rest}`;
}

export { textOf };
