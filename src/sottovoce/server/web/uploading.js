// A recording that is sent to be read as a whole: its progress is shown, and its segments become utterances.

import { clock } from "./rendering.js";
import { uploadFields } from "./settings.js";
import { Upload } from "./upload.js";

const $ = (id) => document.getElementById(id);

export class Uploading {
  // onEnd: with the fault, or nothing.
  constructor(transcript, { onStart, onEnd }) {
    this.transcript = transcript;
    this.onStart = onStart;
    this.onEnd = onEnd;
    this.upload = null;
  }

  get isRunning() {
    return this.upload !== null;
  }

  start(file, key) {
    this.duration = 0;
    $("upload-name").textContent = file.name;
    durationOf(file).then((seconds) => (this.duration = seconds));
    const upload = new Upload(file, uploadFields(), key);
    this.upload = upload;
    upload.addEventListener("sent", ({ detail }) => this.showSent(detail));
    upload.addEventListener("segment", ({ detail }) => this.take(detail));
    upload.addEventListener("end", () => this.end());
    upload.addEventListener("error", ({ detail }) => this.end(detail));
    $("upload").hidden = false;
    this.showSent(0);
    this.onStart();
  }

  showSent(part) {
    $("upload-text").textContent = part < 1 ? `Sending ${Math.round(100 * part)} %` : "Reading…";
    if (part < 1) $("upload-part").value = part;
    else $("upload-part").removeAttribute("value");
  }

  take({ start, end, text, language, words, speaker }) {
    const placed = words?.length ? words : [{ word: text, start, end }];
    const said = placed.map((word) => ({ ...word, language: word.language ?? language, speaker: word.speaker ?? speaker ?? null }));
    this.transcript.add({ words: said });
    this.transcript.place({ start, end, language });
    const whole = this.duration >= end ? ` of ${clock(this.duration)}` : "";
    $("upload-text").textContent = `Read ${clock(end)}${whole}`;
    if (whole) $("upload-part").value = end / this.duration;
  }

  cancel() {
    this.upload?.cancel();
  }

  end(fault) {
    if (!this.upload) return;
    this.upload = null;
    $("upload").hidden = true;
    this.transcript.dispatchEvent(new Event("speaker"));
    this.onEnd(fault);
  }
}

// Seconds of a recording, as far as the browser can tell; 0 where it cannot.
function durationOf(file) {
  return new Promise((resolve) => {
    const probe = document.createElement("audio");
    const done = (seconds) => {
      URL.revokeObjectURL(probe.src);
      resolve(Number.isFinite(seconds) ? seconds : 0);
    };
    probe.preload = "metadata";
    probe.addEventListener("loadedmetadata", () => done(probe.duration));
    probe.addEventListener("error", () => done(0));
    probe.src = URL.createObjectURL(file);
  });
}
