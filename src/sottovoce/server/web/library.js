// The dialog of sessions that are kept in this browser.

import { clock } from "./rendering.js";
import { forget, keep, sessions, soundOf } from "./store.js";

const $ = (id) => document.getElementById(id);

export class Library {
  // current: () => {title, model, duration, transcript, sound}, or null where there is nothing to keep. revision: () =>
  // that of the transcript.
  // onOpen: (session, sound) => whether it was opened. onError: (message).
  constructor({ current, revision, onOpen, onError }) {
    this.current = current;
    this.revision = revision;
    this.onOpen = onOpen;
    this.onError = onError;
    this.id = null; // of the session on the page, once it was kept
    this.keptRevision = -1; // of the transcript then
    $("saved-open").addEventListener("click", () => this.show());
    $("keep").addEventListener("submit", (event) => {
      event.preventDefault();
      this.tried(() => this.keep());
    });
  }

  // Whether all that stands on the page is kept.
  get isKept() {
    return this.id !== null && this.keptRevision === this.revision();
  }

  async show() {
    const current = this.current();
    $("keep-now").disabled = !current;
    $("keep-title").disabled = !current;
    if (!$("keep-title").value) $("keep-title").value = current?.title ?? "";
    if (!$("saved").open) $("saved").showModal();
    await this.tried(() => this.list());
  }

  async list() {
    const found = await sessions();
    $("saved-list").replaceChildren(...found.map((session) => this.item(session)));
    $("saved-none").hidden = found.length > 0;
  }

  async keep() {
    const { transcript, model, duration, sound } = this.current();
    this.id ??= crypto.randomUUID?.() ?? String(Date.now());
    const title = $("keep-title").value.trim() || "Untitled";
    const utterances = transcript.all.map(({ words, translation }) => ({ words, translation }));
    const session = { id: this.id, title, saved: Date.now(), duration, model, called: transcript.called, utterances };
    const revision = this.revision();
    await keep(session, sound);
    this.keptRevision = revision;
    await this.list();
  }

  item(session) {
    const item = document.createElement("li");
    const [text, title, about] = ["div", "b", "span"].map((kind) => document.createElement(kind));
    title.textContent = session.title;
    title.dir = "auto";
    const n = session.utterances.reduce((sum, { words }) => sum + words.length, 0);
    about.textContent = `${new Date(session.saved).toLocaleString()} · ${clock(session.duration)} · ${n} words`;
    text.append(title, about);
    item.append(text, this.button("Open", session, () => this.open(session)), this.button("Delete", session, () => this.forget(session)));
    return item;
  }

  button(text, session, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.ariaLabel = `${text} ${session.title}`;
    button.addEventListener("click", () => this.tried(act));
    return button;
  }

  async open(session) {
    const sound = await soundOf(session.id);
    if (!this.onOpen(session, sound ?? null)) return;
    this.id = session.id;
    this.keptRevision = this.revision();
    $("keep-title").value = session.title;
    $("saved").close();
  }

  async forget(session) {
    if (!confirm(`Delete “${session.title}” with its sound?`)) return;
    await forget(session.id);
    if (this.id === session.id) this.id = null;
    await this.list();
  }

  // The page begins another session.
  begin() {
    this.id = null;
    $("keep-title").value = "";
  }

  async tried(work) {
    try {
      await work();
    } catch (error) {
      this.onError(`This browser could not do that: ${error.message}`);
    }
  }
}
