// Corrections: texts of utterances, names of speakers, find and replace. Each can be undone.

import { textOf } from "./exports.js";
import { History } from "./history.js";
import { lettersBefore } from "./rendering.js";
import { pattern, replaced, retimed } from "./retiming.js";

export class Editor {
  constructor(transcript) {
    this.transcript = transcript;
    this.history = new History();
    this.open = null; // the field of the text that is being corrected
    transcript.addEventListener("changed", ({ detail }) => this.offer(detail.element));
    transcript.log.addEventListener("click", (event) => {
      const said = event.target.closest("span.said");
      if (!said || event.target.matches(".speaker") || event.altKey || !getSelection().isCollapsed) return; // Alt and a click play; a selection is to be copied
      this.edit(said.closest(".utterance").utterance, lettersBefore(said, event));
    });
  }

  // Put the button into an utterance by which its text is corrected.
  offer(element) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "edit";
    button.ariaLabel = `Correct: ${textOf(element.utterance.words).slice(0, 60)}`;
    button.title = "Correct this text (or click into it)";
    button.textContent = "✎";
    button.addEventListener("click", () => this.edit(element.utterance));
    element.append(button);
  }

  // Open the text of an utterance for correction. caret: the letter before which typing begins; by default the end.
  edit(utterance, caret = Infinity) {
    this.open?.keep();
    const element = this.transcript.elements[utterance.id];
    const field = document.createElement("textarea");
    field.className = "said";
    field.value = textOf(utterance.words);
    field.dir = "auto";
    field.lang = utterance.language ?? "";
    field.ariaLabel = "Corrected text; Enter keeps it, Escape does not";
    field.rows = 1;
    element.querySelector(".said").replaceWith(field);
    element.classList.add("editing");
    const fit = () => {
      if (CSS.supports("field-sizing", "content")) return; // the style sheet does it
      field.style.height = "auto";
      field.style.height = `${field.scrollHeight + 2}px`;
    };
    const leave = (isKept) => {
      if (this.open?.field !== field) return;
      this.open = null;
      this.transcript.held = null;
      if (isKept && field.value.trim() !== textOf(utterance.words)) this.correct(utterance, field.value);
      else this.transcript.change(utterance);
    };
    this.transcript.held = utterance; // what comes meanwhile is shown afterwards
    this.open = { field, keep: () => leave(true), utterance };
    field.addEventListener("input", fit);
    field.addEventListener("blur", () => leave(true));
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      leave(event.key === "Enter");
      this.transcript.elements[utterance.id].querySelector(".edit")?.focus();
    });
    fit();
    field.focus();
    field.setSelectionRange(Math.min(caret, field.value.length), Math.min(caret, field.value.length));
  }

  correct(utterance, text) {
    this.change([[utterance, retimed(utterance.words, text)]]);
  }

  // Change the words of utterances, [utterance, words], as one step. also: what else it does.
  change(pairs, also = { redo: () => {}, undo: () => {} }) {
    const before = pairs.map(([utterance]) => [utterance, utterance.words]);
    const show = (wanted) => {
      for (const [utterance, words] of wanted) {
        utterance.words = words;
        this.transcript.change(utterance);
      }
    };
    this.history.do({ redo: () => (also.redo(), show(pairs)), undo: () => (also.undo(), show(before)) });
  }

  rename(speaker, name) {
    const before = this.transcript.called[speaker] ?? "";
    const wanted = name.trim() === speaker ? "" : name.trim().slice(0, 80);
    if (wanted === before) return;
    this.history.do({ redo: () => this.transcript.rename(speaker, wanted), undo: () => this.transcript.rename(speaker, before) });
  }

  // Give the turn that begins with a word of an utterance to another speaker.
  give(utterance, first, speaker) {
    const { words } = utterance;
    const other = words.findIndex((word, i) => i > first && word.speaker !== words[first].speaker);
    const end = other < 0 ? words.length : other;
    this.change([[utterance, words.map((word, i) => (i >= first && i < end ? { ...word, speaker } : word))]]);
  }

  // Give all words of a speaker to another one, also those that come.
  merge(speaker, into) {
    const { transcript } = this;
    const given = (words) => words.map((word) => (word.speaker === speaker ? { ...word, speaker: into } : word));
    const spoken = transcript.utterances.filter(({ words }) => words.some((word) => word.speaker === speaker));
    this.change(spoken.map((utterance) => [utterance, given(utterance.words)]), {
      redo: () => (transcript.joined[speaker] = into),
      undo: () => delete transcript.joined[speaker],
    });
  }

  // How often a text stands in what was said.
  count(text) {
    if (!text) return 0;
    return this.transcript.utterances.reduce((sum, { words }) => sum + [...textOf(words).matchAll(pattern(text))].length, 0);
  }

  // Replace a text everywhere; isLasting: also in what is said from now on. Returns how often.
  replace(from, to, { isLasting = false } = {}) {
    const n = this.count(from);
    const { transcript } = this;
    const pairs = transcript.utterances.map((utterance) => [utterance, replaced(utterance.words, from, to)]).filter(([, words]) => words);
    const [rules, others] = [transcript.replacements, isLasting ? [...transcript.replacements, [from, to]] : transcript.replacements];
    if (pairs.length) this.change(pairs);
    else if (isLasting) this.history.do({ redo: () => {}, undo: () => {} });
    else return 0;
    const step = this.history.done.at(-1);
    const { undo, redo } = step;
    step.undo = () => (undo(), (transcript.replacements = rules));
    step.redo = () => (redo(), (transcript.replacements = others));
    transcript.replacements = others;
    return n;
  }
}
