// The languages and speakers of the text, and what underlines mean.

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

// menu: of a speaker.
export function showSpeakers(transcript, menu) {
  const items = transcript.speakers.map((speaker) => {
    const name = named("button", transcript.speakerTitle(speaker));
    name.type = "button";
    name.title = "Give this speaker a name";
    name.addEventListener("click", () => menu.open(name, speaker));
    return entry(`voice-${transcript.voice(speaker)}`, name);
  });
  $("voices").replaceChildren(...items);
}

// The switch of the underlines, once there are any.
export function showDoubts(transcript) {
  $("doubts").hidden = !transcript.hasDoubts;
}
