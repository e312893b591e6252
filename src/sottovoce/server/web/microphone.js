// Try the microphone before a session: its level, and a word if it is silent. Nothing is sent or kept.

import { levelOf, Source } from "./sources.js";

const SILENT_S = 3;
const LEAST_PEAK = 0.003; // -50 dB: speech into a microphone that works is louder
const $ = (id) => document.getElementById(id);

export class MicrophoneTest {
  // onNamed: the browser tells the names of microphones now. onError: (error).
  constructor({ onNamed, onError }) {
    Object.assign(this, { onNamed, onError });
    this.source = null; // a promise of it
  }

  toggle(deviceId) {
    if (this.source) this.end();
    else this.begin(deviceId);
  }

  async begin(deviceId) {
    this.quiet = 0;
    this.show(true);
    this.source = Source.open("microphone", { deviceId, onMessage: (message) => this.hear(message), onEnded: () => this.end() });
    try {
      await this.source;
      this.onNamed();
    } catch (error) {
      this.end();
      this.onError(error);
    }
  }

  hear({ pcm, peak }) {
    this.quiet = peak > LEAST_PEAK ? 0 : this.quiet + pcm.length / 16000;
    const level = levelOf(peak);
    $("test-level").firstElementChild.style.transform = `scaleX(${level})`;
    $("test-level").ariaValueNow = String(Math.round(100 * level));
    const text = this.quiet > SILENT_S ? "No sound comes from this microphone: is it the right one, and not muted?" : "Say something: the bar moves.";
    if ($("test-text").textContent !== text) $("test-text").textContent = text;
  }

  end() {
    this.source?.then((source) => source.close()).catch(() => {});
    this.source = null;
    this.show(false);
  }

  show(isOn) {
    $("test-line").hidden = !isOn;
    $("test-text").textContent = "";
    $("test").ariaPressed = String(isOn);
    $("test").textContent = isOn ? "End the test" : "Test the microphone";
  }
}
