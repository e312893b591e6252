// Plays the recording and marks the word that is being said. A click on a time, or Alt and a click on a word, plays from there.

import { lettersBefore, rangeIn } from "./rendering.js";

const MARK = "playing";

export class Playback {
  // place: gets the player. transcript: whose words follow.
  constructor(place, transcript) {
    this.place = place;
    this.transcript = transcript;
    this.player = null;
    this.marked = null;
    transcript.log.addEventListener("click", (event) => this.onClick(event));
  }

  open(blob) {
    this.close();
    const player = document.createElement("audio");
    player.controls = true;
    player.src = URL.createObjectURL(blob);
    player.ariaLabel = "The recording";
    player.addEventListener("play", () => this.follow());
    player.addEventListener("seeked", () => this.show());
    this.place.replaceChildren(player);
    this.player = player;
    document.body.classList.add("playable");
  }

  close() {
    if (!this.player) return;
    this.player.pause();
    URL.revokeObjectURL(this.player.src);
    this.player.remove();
    this.player = null;
    this.mark(null);
    document.body.classList.remove("playable");
  }

  follow() {
    if (!this.player || this.player.paused) return;
    this.show();
    requestAnimationFrame(() => this.follow());
  }

  show() {
    if (this.player) this.mark(this.wordAt(this.player.currentTime));
  }

  // The word at a second: {span, from, to}; null: there is none.
  wordAt(seconds) {
    const utterance = this.transcript.utterances.findLast(({ start, words }) => words.length && start <= seconds);
    const spans = utterance ? [...this.transcript.elements[utterance.id].querySelectorAll(".words")] : [];
    const words = spans.flatMap((span) => (span.placed ?? []).map((word) => ({ ...word, span })));
    const word = words.findLast(({ start }) => start <= seconds);
    return word && seconds < word.end + 0.3 ? word : null;
  }

  mark(word) {
    const isSame = word?.span === this.marked?.span && word?.from === this.marked?.from;
    if (isSame) return;
    this.marked?.span.closest(".utterance")?.classList.remove(MARK);
    this.marked = word;
    globalThis.CSS?.highlights?.delete(MARK);
    if (!word) return;
    const utterance = word.span.closest(".utterance");
    utterance.classList.add(MARK);
    if (globalThis.CSS?.highlights) CSS.highlights.set(MARK, new Highlight(rangeIn(word.span, word.from, word.to)));
    utterance.scrollIntoView({ block: "nearest" });
  }

  onClick(event) {
    const element = event.target.closest(".utterance");
    if (!this.player || !element) return;
    const words = event.altKey ? event.target.closest(".words") : null;
    if (!words && !event.target.closest("time")) return;
    const letter = words ? lettersBefore(words, event) : 0;
    this.player.currentTime = words?.placed?.findLast(({ from }) => from <= letter)?.start ?? element.utterance.start;
    this.player.play();
  }
}
