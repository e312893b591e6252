// The bar that finds and replaces. What is found is marked in the text.

import { rangeIn } from "./rendering.js";
import { pattern } from "./retiming.js";

const MARK = "found";
const $ = (id) => document.getElementById(id);

export class Finder {
  constructor(editor) {
    this.editor = editor;
    $("find").addEventListener("click", () => this.toggle());
    $("find-close").addEventListener("click", () => this.toggle(false));
    $("find-text").addEventListener("input", () => this.show());
    $("finder").addEventListener("submit", (event) => {
      event.preventDefault();
      this.replace();
    });
    $("finder").addEventListener("keydown", (event) => event.key === "Escape" && this.toggle(false));
  }

  toggle(isOpen = $("finder").hidden) {
    $("finder").hidden = !isOpen;
    $("find").ariaExpanded = String(isOpen);
    if (isOpen) {
      $("find-text").select();
      $("find-text").focus();
    } else $("find").focus();
    this.show();
  }

  show() {
    const text = $("finder").hidden ? "" : $("find-text").value.trim();
    const n = this.editor.count(text);
    $("find-count").textContent = text ? (n ? `${n} found` : "not found") : "";
    $("find-replace").disabled = !text;
    this.mark(text);
  }

  mark(text) {
    if (!globalThis.CSS?.highlights) return;
    CSS.highlights.delete(MARK);
    if (!text) return;
    const ranges = [];
    for (const words of this.editor.transcript.log.querySelectorAll(".words")) {
      for (const { index, 0: found } of words.textContent.matchAll(pattern(text))) ranges.push(rangeIn(words, index, index + found.length));
    }
    CSS.highlights.set(MARK, new Highlight(...ranges));
    ranges.at(-1)?.startContainer.parentElement.scrollIntoView({ block: "nearest" });
  }

  replace() {
    const n = this.editor.replace($("find-text").value.trim(), $("find-with").value, { isLasting: $("find-lasting").checked });
    this.mark("");
    $("find-count").textContent = `${n} replaced`;
  }
}
