// The languages that are spoken, as chips that are always in sight: names of the codes in the settings' field.

const $ = (id) => document.getElementById(id);

export class Chips {
  // transcript: whose languages have colours. onChange: when a chip was added or removed.
  constructor(transcript, { onChange }) {
    this.transcript = transcript;
    this.name = (code) => transcript.name(code);
    this.onChange = onChange;
    $("languages").addEventListener("input", () => this.show());
    $("languages").addEventListener("change", () => onChange());
    $("add-language").addEventListener("change", () => {
      this.set([...this.codes, $("add-language").value]);
      $("add-language").value = "";
    });
  }

  get codes() {
    const given = $("languages").value.split(",").map((one) => one.trim());
    return given.filter((one) => one && one !== "auto");
  }

  set(codes) {
    $("languages").value = [...new Set(codes)].join(", ");
    this.show();
    this.onChange();
  }

  show() {
    const { codes } = this;
    $("chips").replaceChildren(...(codes.length ? codes.map((code) => this.chip(code)) : [this.any()]));
  }

  any() {
    const item = document.createElement("li");
    item.textContent = "any language";
    return item;
  }

  chip(code) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "×";
    button.ariaLabel = `Remove ${this.name(code)}`;
    button.addEventListener("click", () => {
      this.set(this.codes.filter((other) => other !== code));
      $("add-language").focus();
    });
    if (this.transcript.languages.includes(code)) {
      item.className = `colour-${this.transcript.colour(code)}`;
      item.append(document.createElement("i"));
    }
    item.append(this.name(code), button);
    return item;
  }

  // Offer the languages that a model knows.
  offer(codes) {
    const options = codes.map((code) => new Option(this.name(code), code)).sort((a, b) => a.text.localeCompare(b.text));
    $("add-language").replaceChildren(new Option("+ language", ""), ...options);
  }
}
