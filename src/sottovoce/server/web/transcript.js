// What was said, and what became of it: finished utterances in a log that is read aloud, the one being spoken below.
// What a person corrects stays: later events change speakers and translations, and never a corrected text.

import { textOf } from "./exports.js";
import { Palette } from "./rendering.js";
import { replaced } from "./retiming.js";

const TURN_PAUSE_S = 0.6; // shorter ones belong to the turn

export class Transcript extends Palette {
  // log: gets utterances as they end. now: shows the one being spoken. Events: "grown" with every change, and those of
  // a Palette.
  constructor(log, now) {
    super();
    this.log = log;
    this.now = now;
    this.revision = 0; // counts changes; every utterance has that of its last one
    this.renamed = 0; // the revision of the last change of names
    this.stopped = null; // when the speaker stopped, in milliseconds since 1970
    this.held = null; // the utterance that somebody is at
    this.clear();
  }

  clear() {
    this.revision += 1;
    this.cleared = this.revision;
    this.utterances = [];
    this.elements = []; // of utterances, by their ids
    this.voices = [];
    document.body.classList.remove("has-speakers");
    this.called = {};
    this.joined = {}; // speakers of the session whose words are another's
    this.languages = [];
    this.hasDoubts = false;
    this.finished = new Set(); // speakers of utterances in the log
    this.spans = []; // {start, end, language} of committed words, for the timeline
    this.replacements = []; // [from, to] for what is said from now on
    this.open = new Map(); // utterances that are being spoken, {number, words, translation, unstable}, by source
    this.told = new Map(); // finished utterances of this connection, by the server's numbers
    this.log.replaceChildren();
    this.showLanguages();
    this.dispatchEvent(new Event("speaker"));
    this.dispatchEvent(new Event("doubt"));
    this.render();
  }

  get words() {
    return this.utterances.reduce((sum, { words }) => sum + words.length, this.openWords.length);
  }

  get openWords() {
    return [...this.open.values()].flatMap(({ words }) => words);
  }

  // Who has words, A before B before AA: a correction may take all of somebody's away.
  get speakers() {
    const speaking = this.openWords.map(({ speaker }) => speaker);
    const found = this.voices.filter((voice) => this.finished.has(voice) || speaking.includes(voice));
    return found.sort((a, b) => a.length - b.length || a.localeCompare(b));
  }

  // A name for a speaker whom no session knows.
  get unused() {
    let number = 1;
    while (this.voices.includes(String(number))) number += 1;
    return String(number);
  }

  // Words of an event at the times of the page.
  placed(words, language, offset) {
    const at = (seconds) => seconds + offset;
    return words.map((word) => ({ ...word, ...this.said(word, language), start: at(word.start), end: at(word.end) }));
  }

  // The language and the speaker of a word.
  said(word, language) {
    return { language: word.language ?? language, speaker: this.joined[word.speaker] ?? word.speaker };
  }

  // Who speaks when, {start, end, speaker}, as far as it is known, from some second on.
  turns(from) {
    const shown = this.utterances.filter(({ end }) => end > from);
    const words = [...shown.flatMap((utterance) => utterance.words), ...this.openWords];
    const found = [];
    for (const { start, end, speaker } of words) {
      const last = found.at(-1);
      if (!speaker || end <= from) continue;
      if (last?.speaker === speaker && start - last.end < TURN_PAUSE_S) last.end = Math.max(last.end, end);
      else found.push({ start, end, speaker });
    }
    return found;
  }

  // The utterances that are being spoken, one a source, as they look now.
  get growing() {
    const found = [...this.open.values()].filter(({ words, unstable }) => words.length || unstable);
    return found.map(({ words, translation, unstable }, i) => {
      const at = words[0]?.start ?? this.utterances.at(-1)?.end ?? 0;
      const { language = unstable?.language, end = at } = words.at(-1) ?? {};
      const said = words.map((word) => ({ ...word, ...this.said(word) }));
      return { id: this.utterances.length + i, start: at, end, language, words: said, translation, unstable };
    });
  }

  // What is being spoken as one utterance, for readers; null: nobody speaks.
  get spoken() {
    const { growing } = this;
    const last = growing.at(-1);
    if (growing.length < 2) return last ?? null;
    return { ...last, id: growing[0].id, start: growing[0].start, words: growing.flatMap(({ words }) => words) };
  }

  // All that was said, with the beginnings of what is being said, by time.
  get all() {
    const found = [...this.utterances, ...this.growing].filter(({ words }) => words.length);
    return found.map((utterance) => ({ ...utterance, unstable: null })).sort((a, b) => a.start - b.start);
  }

  // An event of the server, at times `offset` seconds later than it says.
  take(message, offset) {
    if (message.type === "ready") this.told.clear();
    if (message.type === "partial") this.commit(message, offset);
    if (message.type === "translation") this.translate(message);
    if (message.type === "unstable") this.showUnstable(message);
    if (message.type === "final") this.end(message, offset);
  }

  // The utterance that a source speaks. number: undefined: any.
  utteranceOf(source, number) {
    const open = this.open.get(source);
    if (open && open.words.length && number !== undefined && open.number !== number) this.close(source); // its final comes later
    if (!this.open.has(source)) this.open.set(source, { number, words: [], translation: null, unstable: null });
    return this.open.get(source);
  }

  commit({ words, language, utterance, source }, offset) {
    const open = this.utteranceOf(source, utterance);
    open.number = utterance;
    for (const word of this.placed(words, language, offset)) {
      open.words.push(word);
      this.place(word);
      this.note(word);
    }
    open.unstable = null;
    this.render();
  }

  place({ start, end, language }) {
    const last = this.spans.at(-1);
    if (last?.language === language && start - last.end < 0.6) last.end = Math.max(last.end, end);
    else this.spans.push({ start, end, language });
  }

  showUnstable({ text, language, source }) {
    this.utteranceOf(source).unstable = text ? { text, language } : null;
    this.render();
  }

  // What an utterance says in another language: its beginning while it grows, all of it after its end.
  translate({ utterance: number, text, language, final, source }) {
    const [told, open] = [this.told.get(number), this.open.get(source)];
    if (final && told) {
      const isNone = text === told.said; // it was said in that language
      told.utterance.translation = isNone ? null : { text, language };
      this.showTranslation(told.utterance);
    } else if (open?.number === number && open.words.length && open.words.at(-1).language !== language) {
      const before = open.translation ? `${open.translation.text} ` : "";
      open.translation = { text: before + text, language };
      this.render();
    }
  }

  // A final of a second pass has other words. It may come while the next utterance is being spoken, or after a correction,
  // which stays.
  end({ words, language, utterance: number, read, revised, committed, source }, offset) {
    if (!read) return this.close(source, words);
    const found = this.placed(words, language, offset);
    const before = revised ? textOf(committed) : null;
    const open = this.open.get(source);
    if (open?.words.length && open.number === number) {
      open.words = found;
      return this.close(source, found, before);
    }
    const told = this.told.get(number);
    if (!told || told.utterance.words !== told.words) return;
    told.words = told.utterance.words = this.corrected(found);
    told.utterance.committed = before;
    told.said = textOf(found);
    for (const word of found) this.note(word);
    this.change(told.utterance);
    this.elements[told.utterance.id].classList.add("revised");
  }

  corrected(words) {
    return this.replacements.reduce((found, [from, to]) => replaced(found, from, to) ?? found, words);
  }

  // The utterance is whole: it moves into the log, and is announced there once. told: its words, whose speakers may
  // have been corrected. committed: the text before a second pass, or null.
  close(source, told = [], committed = null) {
    const { words, number, translation } = this.open.get(source) ?? { words: [] };
    if (told.length === words.length) words.forEach((word, i) => (word.speaker = this.said(told[i]).speaker));
    this.open.delete(source);
    if (words.length) {
      const utterance = this.add({ words: this.corrected(words), beginning: translation, committed });
      this.told.set(number, { utterance, words: utterance.words, said: textOf(words) });
    }
    this.render();
    if (words.length && told.length) this.dispatchEvent(new Event("speaker"));
  }

  // Close the utterances of all sources.
  closeAll() {
    for (const source of [...this.open.keys()]) this.close(source);
  }

  // Put a finished utterance into the log, by its time. beginning: of a translation that is not whole yet.
  add({ words, translation = null, beginning = null, committed = null }) {
    const spoken = {};
    for (const { language } of words) spoken[language] = (spoken[language] ?? 0) + 1;
    const language = Object.keys(spoken).sort((a, b) => spoken[b] - spoken[a])[0];
    const [start, end] = [words[0].start, words.at(-1).end];
    const utterance = { id: this.utterances.length, start, end, language, words, translation, beginning, committed, revision: 0 };
    const before = this.utterances.findLastIndex((other) => other.start <= start);
    this.utterances.splice(before + 1, 0, utterance);
    this.change(utterance);
    return utterance;
  }

  // Show an utterance as it is now.
  change(utterance) {
    utterance.revision = this.revision += 1;
    if (utterance === this.held) return;
    const { words, translation, beginning } = utterance;
    for (const word of words) this.note(word);
    this.finished = new Set(this.utterances.flatMap((other) => other.words.map(({ speaker }) => speaker)));
    const element = this.element({ words, translation: translation ?? beginning }, { isWhole: Boolean(translation) });
    element.utterance = utterance;
    element.hidden = !words.length;
    const before = this.elements[utterance.id];
    this.elements[utterance.id] = element;
    const previous = this.utterances[this.utterances.indexOf(utterance) - 1];
    if (before) before.replaceWith(element);
    else if (previous) this.elements[previous.id].after(element);
    else this.log.prepend(element);
    this.dispatchEvent(new CustomEvent("changed", { detail: { element } }));
    if (before) this.dispatchEvent(new Event("speaker"));
    this.dispatchEvent(new Event("grown"));
  }

  // Put the whole translation under an utterance, which itself is not announced again.
  showTranslation(utterance) {
    utterance.beginning = null;
    utterance.revision = this.revision += 1;
    const element = this.elements[utterance.id];
    element.querySelector(".translation")?.remove();
    if (utterance.translation) element.querySelector(".said").after(this.translation(utterance.translation));
    this.dispatchEvent(new Event("grown"));
  }

  // Call a speaker something; an empty name: by the letter again.
  rename(speaker, name) {
    if (name) this.called[speaker] = name;
    else delete this.called[speaker];
    this.renamed = this.revision += 1;
    for (const utterance of this.utterances) if (utterance.words.some((word) => word.speaker === speaker)) this.change(utterance);
    this.render();
    this.dispatchEvent(new Event("speaker"));
  }

  render() {
    this.now.replaceChildren(...this.growing.map((utterance) => this.element(utterance, { isWhole: false })));
    this.dispatchEvent(new Event("grown"));
  }
}
