// The languages and speakers of the text, and what underlines mean: speakers can be given names there.

const $ = (id) => document.getElementById(id);

function entry(colour, name) {
  const item = document.createElement("li");
  const mark = document.createElement("i");
  item.className = colour;
  item.append(mark, name);
  return item;
}

function named(kind, text) {
  const name = document.createElement(kind);
  name.className = "name";
  name.textContent = text;
  return name;
}

// The languages of the text that have no chip.
export function showLanguages(transcript, chips) {
  const others = transcript.languages.filter((language) => language && !chips.codes.includes(language));
  const items = others.map((language) => entry(`colour-${transcript.colour(language)}`, named("span", transcript.name(language))));
  $("legend").replaceChildren(...items);
}

export function showSpeakers(transcript, editor) {
  if ($("voices").querySelector("input")) return; // somebody is being named: it is shown afterwards
  const items = transcript.speakers.map((speaker) => {
    const name = named("button", transcript.called[speaker] ?? `Speaker ${speaker}`);
    name.type = "button";
    name.title = "Give this speaker a name";
    name.addEventListener("click", () => rename(name, speaker, transcript, editor));
    return entry(`voice-${transcript.voice(speaker)}`, name);
  });
  $("voices").replaceChildren(...items);
}

// The switch of the underlines, once there are any.
export function showDoubts(transcript) {
  $("doubts").hidden = !transcript.hasDoubts;
}

// A click on a speaker beside the text gives a name too.
export function nameBesideText(transcript, editor) {
  transcript.addEventListener("changed", ({ detail: { element } }) => {
    for (const label of element.querySelectorAll(".speaker")) label.title += ": click to give a name";
  });
  transcript.log.addEventListener("click", ({ target }) => {
    if (target.matches(".speaker")) rename(target, target.dataset.speaker, transcript, editor);
  });
}

function rename(name, speaker, transcript, editor) {
  const field = document.createElement("input");
  field.value = transcript.called[speaker] ?? "";
  field.placeholder = `Speaker ${speaker}`;
  field.ariaLabel = `Name of speaker ${speaker}`;
  field.maxLength = 80;
  field.className = "naming";
  let isOpen = true;
  const leave = (isKept) => {
    if (!isOpen) return;
    isOpen = false;
    field.replaceWith(name);
    if (isKept) editor.rename(speaker, field.value);
    showSpeakers(transcript, editor);
  };
  field.addEventListener("blur", () => leave(true));
  field.addEventListener("keydown", (event) => {
    if (["Enter", "Escape"].includes(event.key) && !event.isComposing) leave(event.key === "Enter");
  });
  name.replaceWith(field);
  field.focus();
}
