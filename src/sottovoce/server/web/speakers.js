// The menu of a speaker: a name everywhere, or the name of another speaker, which joins both; and who says one turn.

const $ = (id) => document.getElementById(id);

export class SpeakerMenu {
  constructor(transcript, editor) {
    Object.assign(this, { transcript, editor });
    transcript.addEventListener("changed", ({ detail: { element } }) => {
      for (const label of element.querySelectorAll(".speaker")) label.title += ": click to change";
    });
    transcript.log.addEventListener("click", ({ target }) => {
      if (!target.matches(".speaker")) return;
      this.open(target, target.dataset.speaker, target.closest(".utterance").utterance, Number(target.dataset.first));
    });
    $("speaker").addEventListener("submit", (event) => {
      event.preventDefault();
      this.rename();
    });
  }

  // Open beside an element. utterance, first: the turn, by its first word; nothing: the speaker everywhere.
  open(element, speaker, utterance = null, first = 0) {
    Object.assign(this, { speaker, utterance });
    const { transcript } = this;
    $("speaker-name").value = transcript.called[speaker] ?? "";
    $("speaker-name").placeholder = transcript.speakerTitle(speaker);
    $("speaker-names").replaceChildren(...this.others.map((other) => new Option(transcript.speakerTitle(other))));
    $("speaker-turn").hidden = !utterance;
    const choices = utterance ? [...this.others.map((other) => [transcript.speakerTitle(other), other]), ["New speaker", transcript.unused]] : [];
    $("speaker-choices").replaceChildren(...choices.map(([text, other]) => this.choice(text, () => this.editor.give(utterance, first, other))));
    $("speaker").showPopover();
    const { left, bottom } = element.getBoundingClientRect();
    $("speaker").style.left = `${Math.max(8, Math.min(left, innerWidth - $("speaker").offsetWidth - 8))}px`;
    $("speaker").style.top = `${Math.max(8, Math.min(bottom + 6, innerHeight - $("speaker").offsetHeight - 8))}px`;
    $("speaker-name").select();
  }

  get others() {
    return this.transcript.speakers.filter((other) => other !== this.speaker);
  }

  choice(text, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => {
      $("speaker").hidePopover();
      act();
    });
    return button;
  }

  rename() {
    const name = $("speaker-name").value.trim();
    $("speaker").hidePopover();
    const other = this.others.find((one) => [one, this.transcript.speakerTitle(one)].includes(name));
    if (other) this.editor.merge(this.speaker, other);
    else this.editor.rename(this.speaker, name);
  }
}
