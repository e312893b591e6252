// The sessions of this browser: the one on the page is kept as it grows, and is there again after a reload.

import { clock } from "./rendering.js";
import { forget, keep, keepSound, newId, sessionOf, sessions, soundOf } from "./store.js";

const KEEP_MS = 2000; // after a change, at the latest
const TAB = "sottovoce.session"; // the session of this tab
const SOUND = "sottovoce.keep-sound";
const $ = (id) => document.getElementById(id);

// Some errors of storage have a name alone.
const reason = ({ message, name }) => message || name;

export class Library {
  // current: () => {title, name, model, duration, transcript, sound}, or null where there is nothing to keep. revision:
  // () => that of the transcript. language: (code) => its name.
  // onOpen: (session, sound) => whether it was opened. onRename: (name). onForget: when the session on the page was
  // deleted. onError: (message).
  constructor({ current, revision, language, onOpen, onRename, onForget, onError }) {
    Object.assign(this, { current, revision, language, onOpen, onRename, onForget, onError });
    this.kept = null; // {id, saved} of the session on the page, once it was kept
    this.keptRevision = -1; // of the transcript then
    this.isFailing = false; // this browser keeps nothing
    this.timer = null;
    this.working = Promise.resolve();
    $("keep-sound").checked = localStorage.getItem(SOUND) !== "false";
    $("keep-sound").addEventListener("change", () => localStorage.setItem(SOUND, String($("keep-sound").checked)));
    $("saved-open").addEventListener("click", () => this.show());
    $("keep").addEventListener("submit", (event) => {
      event.preventDefault();
      this.onRename($("keep-title").value.trim());
      this.keep(true).then(() => this.tried(() => this.list()));
    });
  }

  // Whether all that stands on the page is kept.
  get isKept() {
    return this.kept !== null && this.keptRevision === this.revision();
  }

  // The page has changed.
  note() {
    if (this.timer === null && !this.isKept) this.timer = setTimeout(() => this.keep(), KEEP_MS);
  }

  // Keep what stands on the page; isWhole: with its sound, and even if the text is kept already.
  keep(isWhole = false) {
    clearTimeout(this.timer);
    this.timer = null;
    const current = this.current();
    if (!current || (this.isKept && !isWhole)) return this.working;
    const kept = (this.kept ??= { id: newId() });
    sessionStorage.setItem(TAB, kept.id);
    const { transcript, sound, ...about } = current;
    const utterances = transcript.all.map(({ words, translation, committed }) => ({ words, translation, committed }));
    const session = { ...about, saved: Date.now(), called: { ...transcript.called }, utterances };
    this.keptRevision = this.revision();
    const keptSound = isWhole && $("keep-sound").checked ? sound : null;
    this.working = this.working.then(() => this.write(kept, session, keptSound));
    return this.working;
  }

  // The text has room where the sound may have none.
  async write(kept, session, sound) {
    const before = kept.id;
    try {
      kept.id = await keep({ ...session, id: before }, kept.saved);
      kept.saved = session.saved;
      if (this.kept === kept) sessionStorage.setItem(TAB, kept.id);
      this.isFailing = false;
    } catch (error) {
      this.fail(error);
      return;
    }
    try {
      const blob = sound ?? (kept.id === before ? null : await soundOf(before));
      if (blob) await keepSound(kept.id, blob);
    } catch (error) {
      this.onError(`This browser does not keep the sound (${reason(error)}).`);
    }
  }

  fail(error) {
    if (!this.isFailing) this.onError(`This browser keeps no sessions (${reason(error)}): save the text before you leave.`);
    this.isFailing = true;
    this.keptRevision = -1;
  }

  // Show the session that this tab had; in a new tab, offer the last one.
  async restore() {
    const id = sessionStorage.getItem(TAB);
    const session = id ? await sessionOf(id).catch(() => undefined) : undefined;
    if (session) {
      await this.open(session);
      return;
    }
    const last = (await sessions().catch(() => [])).find(({ utterances }) => utterances.length);
    $("last").hidden = !last;
    if (!last) return;
    $("last-open").textContent = last.title;
    $("last-open").dir = "auto";
    $("last-open").onclick = () => this.tried(() => this.open(last));
  }

  async reopen(kept) {
    await this.working;
    const session = await sessionOf(kept.id);
    if (session) await this.open(session);
  }

  async show() {
    const current = this.current();
    $("keep-now").disabled = !current;
    $("keep-title").disabled = !current;
    $("keep-title").value = current?.title ?? "";
    if (!$("saved").open) $("saved").showModal();
    await this.keep();
    await this.tried(() => this.list());
  }

  async list() {
    const found = await sessions();
    $("saved-list").replaceChildren(...found.map((session) => this.item(session)));
    $("saved-none").hidden = found.length > 0;
  }

  item(session) {
    const item = document.createElement("li");
    const [text, title, about] = ["div", "b", "span"].map((kind) => document.createElement(kind));
    title.textContent = session.title;
    title.dir = "auto";
    const words = session.utterances.flatMap((utterance) => utterance.words);
    const languages = [...new Set(words.map(({ language }) => language))].filter(Boolean).map(this.language);
    const when = new Date(session.saved).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
    about.textContent = [when, clock(session.duration), languages.join(", "), `${words.length} words`].filter(Boolean).join(" · ");
    text.append(title, about);
    item.append(text);
    if (session.id === this.kept?.id) item.ariaCurrent = "true";
    else item.append(this.button("Open", session, () => this.open(session)));
    item.append(this.button("Delete", session, () => this.forget(session)));
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
    await this.keep();
    if (!this.onOpen(session, sound ?? null)) return;
    this.kept = { id: session.id, saved: session.saved };
    sessionStorage.setItem(TAB, session.id);
    this.keptRevision = this.revision();
    $("saved").close();
  }

  async forget(session) {
    if (!confirm(`Delete “${session.title}” with its sound?`)) return;
    await forget(session.id);
    if (this.kept?.id === session.id) this.onForget();
    await this.list();
  }

  // The page begins another session.
  begin() {
    clearTimeout(this.timer);
    this.timer = null;
    this.kept = null;
    sessionStorage.removeItem(TAB);
  }

  async tried(work) {
    try {
      await work();
    } catch (error) {
      this.onError(`This browser could not do that: ${error.message}`);
    }
  }
}
