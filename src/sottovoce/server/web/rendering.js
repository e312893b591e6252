// How utterances look: runs of words with labels of language and speaker, the same on every page.

const COLOURS = 8;
const VOICES = 6;
const UNNAMED = { ba: "Bashkir", bo: "Tibetan" }; // languages of Whisper that Chromium has no names for

// Colours of languages and speakers by order of appearance, and what speakers are called.
// Events: "language" and "speaker", when there is another one; "doubt", when the first word is marked as doubtful.
export class Palette extends EventTarget {
  constructor() {
    super();
    this.languages = [];
    this.voices = []; // every speaker ever told, in order of appearance: by that they keep their colours
    this.called = {}; // names of speakers by their letters
    this.hasDoubts = false;
    this.displayed = new Intl.DisplayNames([navigator.language], { type: "language", fallback: "code" });
  }

  name(language) {
    try {
      const name = this.displayed.of(language) ?? language;
      return name === language ? (UNNAMED[language] ?? language) : name;
    } catch {
      return language;
    }
  }

  // What a speaker is called: a name, or the letter.
  speakerName(speaker) {
    return this.called[speaker] ?? speaker;
  }

  // The same where there is more room; live sources have names.
  speakerTitle(speaker) {
    return this.called[speaker] ?? (/^([A-Z]{1,2}|\d+)$/.test(speaker) ? `Speaker ${speaker}` : speaker);
  }

  colour(language) {
    if (!this.languages.includes(language)) {
      this.languages.push(language);
      this.showLanguages();
    }
    return this.languages.indexOf(language) % COLOURS;
  }

  // Text has colours and labels of languages only where there are several.
  showLanguages() {
    document.body.classList.toggle("several-languages", this.languages.length > 1);
    this.dispatchEvent(new Event("language"));
  }

  voice(speaker) {
    this.note({ speaker });
    return this.voices.indexOf(speaker) % VOICES;
  }

  note({ speaker }) {
    if (!speaker || this.voices.includes(speaker)) return;
    this.voices.push(speaker);
    document.body.classList.add("has-speakers");
    this.dispatchEvent(new Event("speaker"));
  }

  // One utterance: its time, runs of words of one language with a label each, what may still change, and its translation.
  element({ words, unstable, translation }, { isWhole = true } = {}) {
    const element = document.createElement("p");
    element.className = "utterance";
    const time = document.createElement("time");
    time.textContent = words.length ? clock(words[0].start) : "";
    const said = document.createElement("span");
    said.className = "said";
    said.dir = direction(words.map(({ word }) => word).join("") || unstable?.text || "");
    for (const run of runs(words)) {
      if (run.isApart) said.append(" "); // outside of both: inside, it would go with the direction of its text
      if (run.isTurn && said.childElementCount) said.append(document.createElement("br"));
      if (run.isTurn) said.append(this.speakerLabel(run.speaker, run.first));
      const span = this.span(run.text, run.language);
      span.placed = run.placed; // where each word stands in the text, for what plays along
      this.markDoubts(span);
      said.append(this.label(run.language), span);
    }
    if (unstable) said.append(this.span(words.length ? unstable.text : unstable.text.trimStart(), unstable.language, "unstable"));
    element.append(time, said);
    if (translation) element.append(this.translation(translation, !isWhole));
    return element;
  }

  // The line under an utterance. isBeginning: the whole one replaces it, and is read aloud then.
  translation({ text, language }, isBeginning = false) {
    const line = document.createElement("span");
    line.className = isBeginning ? "translation unstable" : "translation";
    if (language) line.lang = language;
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

  // Who speaks, before what is theirs. first: the place of its first word in the utterance.
  speakerLabel(speaker, first) {
    const label = document.createElement("b");
    label.className = `speaker voice-${this.voice(speaker)}`;
    label.title = this.called[speaker] ? `${this.called[speaker]} (speaker ${speaker})` : this.speakerTitle(speaker);
    label.dataset.speaker = speaker;
    label.dataset.first = first;
    label.textContent = this.speakerName(speaker);
    return label;
  }

  // Underline the words that the model is not sure of.
  markDoubts(span) {
    const doubtful = span.placed.filter((word) => word.doubtful && word.to > word.from);
    if (!doubtful.length) return;
    const text = span.textContent;
    const parts = [];
    let at = 0;
    for (const { from, to, probability } of doubtful) {
      const mark = document.createElement("mark");
      mark.className = "doubtful";
      mark.title = `May be wrong: the model is ${Math.round(100 * probability)} % sure of this word`;
      mark.style.setProperty("--doubt", 1 - probability);
      mark.textContent = text.slice(from, to);
      parts.push(text.slice(at, from), mark);
      at = to;
    }
    span.replaceChildren(...[...parts, text.slice(at)].filter((part) => part !== ""));
    if (this.hasDoubts) return;
    this.hasDoubts = true;
    this.dispatchEvent(new Event("doubt"));
  }

  span(text, language, extra = "") {
    const span = document.createElement("span");
    span.className = `words colour-${this.colour(language)} ${extra}`.trim();
    if (language) span.lang = language;
    span.dir = "auto";
    span.textContent = text;
    return span;
  }
}

// The direction of a text, as dir="auto" has it, which does not look into elements with a direction of their own.
function direction(text) {
  return /^\P{L}*[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}]/u.test(text) ? "rtl" : "ltr";
}

// Words of one language and speaker that follow each other.
function runs(words) {
  const found = [];
  for (const word of words) {
    const last = found.at(-1)?.[0];
    if (last && last.language === word.language && last.speaker === word.speaker) found.at(-1).push(word);
    else found.push([word]);
  }
  let at = 0;
  const firsts = found.map(({ length }) => (at += length) - length);
  const texts = found.map((run) => run.map(({ word }) => word).join(""));
  return found.map((run, i) => ({
    language: run[0].language,
    speaker: run[0].speaker,
    first: firsts[i],
    isTurn: Boolean(run[0].speaker) && found[i - 1]?.[0].speaker !== run[0].speaker,
    text: texts[i].trim(),
    placed: placed(run),
    isApart: i > 0 && (/\s$/.test(texts[i - 1]) || /^\s/.test(texts[i])),
  }));
}

// Words with the places of their letters in the text of their run, {start, end, from, to}, and whether they are doubtful.
function placed(run) {
  let at = -(run[0].word.length - run[0].word.trimStart().length);
  return run.map(({ word, start, end, doubtful, probability }) => {
    const from = at + word.length - word.trimStart().length;
    at += word.length;
    const to = at - (word.length - word.trimEnd().length);
    return { start, end, from: Math.max(0, from), to, doubtful, probability };
  });
}

// Letters [from, to) of the text of an element, whatever elements are in it.
export function rangeIn(element, from, to) {
  const range = new Range();
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let at = 0;
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const end = at + text.length;
    if (from >= at && from < end) range.setStart(text, from - at);
    if (to > at && to <= end) range.setEnd(text, to - at);
    at = end;
  }
  return range;
}

// The letters of words before the point of a click, counted from the beginning of an element; labels do not count.
export function lettersBefore(element, { clientX, clientY }) {
  const place = document.caretPositionFromPoint?.(clientX, clientY);
  const caret = place ? null : document.caretRangeFromPoint?.(clientX, clientY);
  const [text, offset] = place ? [place.offsetNode, place.offset] : [caret?.startContainer, caret?.startOffset];
  if (!element.contains(text)) return 0;
  const range = new Range();
  range.setStart(element, 0);
  range.setEnd(text, offset);
  const before = range.cloneContents();
  before.querySelectorAll(".label, .speaker").forEach((label) => label.remove());
  return before.textContent.length;
}

export function clock(seconds) {
  const whole = Math.floor(seconds);
  const rest = `${String(Math.floor(whole / 60) % 60).padStart(whole < 3600 ? 1 : 2, "0")}:${String(whole % 60).padStart(2, "0")}`;
  return whole < 3600 ? rest : `${Math.floor(whole / 3600)}:${rest}`;
}
