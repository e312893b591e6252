// The last seconds as a picture: a strip of the level in the colours of the languages; opened, a spectrogram, under it
// which language was spoken when, and a lane for every speaker.

const STEP_S = 0.1; // one column
const BANDS = 48;
const LOWEST_HZ = 60;
const HIGHEST_HZ = 7600;
const LANE = 22; // height of the language lane, CSS pixels
const AXIS = 16;
const VOICE_LANE = 16; // height of a speaker's lane
const VOICE_LANES = 80; // of all of them: more than five are thinner
const LETTERED = 11; // the least height with a letter in it
const LANGUAGE_COLOURS = 8;
const VOICE_COLOURS = 6;

export class Timeline {
  constructor(canvas, transcript) {
    this.canvas = canvas;
    this.transcript = transcript;
    this.columns = []; // one Uint8Array(BANDS) a step
    this.speech = []; // {start, end}; end is undefined while it lasts
    this.changes = []; // seconds
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.dirty = true;
    this.drawn = 0;
    this.lane = 0;
    this.lanes = 0;
    this.isOpen = false;
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.readColours());
    this.readColours();
    requestAnimationFrame((now) => this.frame(now));
  }

  clear() {
    this.columns = [];
    this.speech = [];
    this.changes = [];
    this.dirty = true;
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    this.ink = value("--muted");
    this.line = value("--line");
    this.paper = value("--panel");
    this.sound = channels(value("--sound"));
    this.ground = channels(value("--panel"));
    this.languageColours = Array.from({ length: LANGUAGE_COLOURS }, (_, i) => value(`--language-${i}`));
    this.voiceColours = Array.from({ length: VOICE_COLOURS }, (_, i) => value(`--voice-${i}`));
    this.rows = undefined;
    this.dirty = true;
  }

  // A column for each message of sound.
  push(analyser) {
    this.spectrum ??= new Uint8Array(analyser.frequencyBinCount);
    analyser.getByteFrequencyData(this.spectrum);
    const perBin = analyser.context.sampleRate / analyser.fftSize;
    const column = new Uint8Array(BANDS);
    for (let band = 0; band < BANDS; band += 1) {
      const first = Math.floor(bandHz(band) / perBin);
      const last = Math.max(first + 1, Math.ceil(bandHz(band + 1) / perBin));
      for (let bin = first; bin < last && bin < this.spectrum.length; bin += 1) {
        column[band] = Math.max(column[band], this.spectrum[bin]);
      }
    }
    this.columns.push(column);
    this.dirty = true;
  }

  // Go on at a second, after silence.
  skipTo(seconds) {
    while (this.now < seconds) this.columns.push(new Uint8Array(BANDS));
  }

  take(message, offset) {
    const at = (message.at ?? message.start) + offset;
    if (message.type === "speech_started") this.speech.push({ start: at });
    if (message.type === "speech_ended") this.endSpeech(message.end + offset);
    if (message.type === "language" && message.from) this.changes.push(at);
  }

  endSpeech(at) {
    const last = this.speech.at(-1);
    if (last && last.end === undefined) last.end = at;
  }

  get now() {
    return this.columns.length * STEP_S;
  }

  resize() {
    const scale = devicePixelRatio;
    this.canvas.width = Math.round(this.canvas.clientWidth * scale);
    this.canvas.height = Math.round(this.canvas.clientHeight * scale);
    this.dirty = true;
  }

  // Room for the lanes of so many speakers; the picture grows by it.
  makeRoom(n) {
    this.lane = n ? Math.max(6, Math.min(VOICE_LANE, VOICE_LANES / n)) : 0;
    this.lanes = Math.round(this.lane * n);
    this.canvas.style.setProperty("--lanes", `${this.lanes}px`);
    this.dirty = true;
  }

  frame(now) {
    const every = this.still.matches ? 1000 : 0;
    if (this.dirty && now - this.drawn >= every) {
      this.dirty = false;
      this.drawn = now;
      this.draw();
    }
    requestAnimationFrame((next) => this.frame(next));
  }

  draw() {
    const context = this.canvas.getContext("2d");
    const scale = devicePixelRatio;
    const width = this.canvas.width / scale;
    const height = this.canvas.height / scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const shown = width < 520 ? 30 : 60;
    const start = Math.max(0, this.now - shown);
    const x = (seconds) => ((seconds - start) / shown) * width;
    if (!this.isOpen) {
      this.drawLevel(context, start, x, height);
      return;
    }
    const soundHeight = height - LANE - this.lanes - AXIS;
    this.drawSound(context, start, x, soundHeight);
    this.drawLane(context, start, x, soundHeight, width);
    this.drawVoices(context, start, x, soundHeight + LANE, width);
    this.drawAxis(context, start, shown, x, height);
  }

  // A bar for each step of sound, as high as it was loud, in the colour of the language that was spoken.
  drawLevel(context, start, x, height) {
    const first = Math.floor(start / STEP_S);
    const bar = Math.max(1, x(start + STEP_S) - 1);
    const spans = this.transcript.spans.filter(({ end }) => end > start);
    let at = 0;
    this.columns.slice(first).forEach((column, i) => {
      const seconds = (first + i) * STEP_S;
      while (at < spans.length && spans[at].end <= seconds) at += 1;
      const isSpoken = at < spans.length && spans[at].start <= seconds + STEP_S;
      const loud = Math.max(0, Math.max(...column) - 60) / 195;
      const tall = Math.max(2, loud * (height - 6));
      context.fillStyle = isSpoken ? this.languageColours[this.transcript.colour(spans[at].language)] : this.line;
      context.fillRect(x(seconds), (height - tall) / 2, bar, tall);
    });
  }

  drawSound(context, start, x, height) {
    const first = Math.floor(start / STEP_S);
    const columns = this.columns.slice(first);
    if (!columns.length) return;
    const image = new ImageData(columns.length, BANDS);
    columns.forEach((column, i) => {
      for (let band = 0; band < BANDS; band += 1) {
        const loud = Math.max(0, column[band] - 60) / 195;
        const place = 4 * ((BANDS - 1 - band) * columns.length + i);
        for (let c = 0; c < 3; c += 1) image.data[place + c] = this.sound[c];
        image.data[place + 3] = 255 * loud ** 1.3;
      }
    });
    this.rows ??= document.createElement("canvas");
    this.rows.width = columns.length;
    this.rows.height = BANDS;
    this.rows.getContext("2d").putImageData(image, 0, 0);
    const left = x(first * STEP_S);
    context.imageSmoothingEnabled = true;
    context.drawImage(this.rows, left, 2, x((first + columns.length) * STEP_S) - left, height - 4);
  }

  drawLane(context, start, x, top, width) {
    const box = (from, to, inset) => {
      context.beginPath();
      context.roundRect(Math.max(0, x(from)), top + inset, Math.max(2, x(to) - Math.max(0, x(from))), LANE - 2 * inset, 3);
      context.fill();
    };
    context.fillStyle = this.line;
    for (const { start: from, end = this.now } of this.speech) if (end > start) box(from, end, 6);
    context.font = "600 11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const { start: from, end, language } of this.transcript.spans) {
      if (end <= start) continue;
      context.fillStyle = this.languageColours[this.transcript.colour(language)];
      box(from, end, 2);
      const left = Math.max(0, x(from));
      if (x(end) - left > 24) {
        context.fillStyle = this.paper;
        context.fillText(language, left + 6, top + LANE / 2 + 0.5);
      }
    }
    context.fillStyle = this.ink;
    for (const at of this.changes) if (at >= start && x(at) <= width) context.fillRect(x(at) - 0.5, 0, 1, top + LANE);
  }

  drawVoices(context, start, x, top, width) {
    const { speakers } = this.transcript;
    const middle = (speaker) => top + (speakers.indexOf(speaker) + 0.5) * this.lane;
    context.fillStyle = this.line;
    for (const speaker of speakers) context.fillRect(0, Math.round(middle(speaker)), width, 1);
    context.font = "600 10px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const { start: from, end, speaker } of this.transcript.turns(start)) {
      const left = Math.max(0, x(from));
      const length = Math.max(3, x(end) - left);
      context.fillStyle = this.voiceColours[this.transcript.voice(speaker)];
      context.beginPath();
      context.roundRect(left, middle(speaker) - this.lane / 2 + 1.5, length, this.lane - 3, this.lane / 2);
      context.fill();
      if (length < 20 || this.lane < LETTERED) continue;
      context.fillStyle = this.paper;
      context.fillText(speaker, left + 7, middle(speaker) + 0.5);
    }
  }

  drawAxis(context, start, shown, x, height) {
    context.fillStyle = this.ink;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "bottom";
    for (let tick = Math.ceil(start / 10) * 10; tick <= start + shown - 2; tick += 10) {
      context.fillRect(x(tick), height - AXIS, 1, 3);
      context.fillText(`${Math.floor(tick / 60)}:${String(tick % 60).padStart(2, "0")}`, x(tick) + 3, height);
    }
  }
}

// Frequency at the lower edge of a band: even steps on the mel scale.
function bandHz(band) {
  const mel = (hz) => Math.log(1 + hz / 700);
  const value = mel(LOWEST_HZ) + ((mel(HIGHEST_HZ) - mel(LOWEST_HZ)) * band) / BANDS;
  return 700 * (Math.exp(value) - 1);
}

// "#rrggbb" into [r, g, b].
function channels(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}
