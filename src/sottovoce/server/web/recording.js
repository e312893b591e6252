// The audio, kept in this browser's memory as long as its text stands on the page, to be played beside it.

const RATE = 16000;
const PIECE_SAMPLES = 60 * RATE; // a piece is given to the browser, which may put it on disk
const MOST_S = 3 * 3600; // more is not kept; the text goes on

export class Recording {
  constructor() {
    this.clear();
  }

  clear() {
    this.pieces = []; // Blobs of PCM
    this.open = []; // Int16Arrays since the last piece
    this.nOpen = 0;
    this.seconds = 0;
    this.file = null; // a recording that was sent here whole
    this.isOn = true;
  }

  // What comes now is said at a second of the page: it is kept if all before it was, and none of it is a file.
  goOn(seconds) {
    this.isOn = !this.file && (seconds === 0 || this.seconds > 0);
  }

  // channels: that alternate, and are mixed.
  push(pcm, channels) {
    if (!this.isOn || this.seconds > MOST_S) return;
    const mixed = pcm.filter((_, i) => i % channels === 0);
    for (let c = 1; c < channels; c += 1) mixed.forEach((sample, i) => (mixed[i] = sample + (pcm[i * channels + c] - sample) / (c + 1)));
    this.open.push(mixed);
    this.nOpen += mixed.length;
    this.seconds += mixed.length / RATE;
    if (this.nOpen >= PIECE_SAMPLES) this.close();
  }

  close() {
    if (this.nOpen) this.pieces.push(new Blob(this.open));
    this.open = [];
    this.nOpen = 0;
  }

  // A file of all of it; null: there is none.
  get blob() {
    if (this.file) return this.file;
    this.close();
    const size = this.pieces.reduce((sum, piece) => sum + piece.size, 0);
    return size ? new Blob([head(size), ...this.pieces], { type: "audio/wav" }) : null;
  }
}

// The beginning of a WAV file of 16 kHz, 16 bits, one channel.
function head(size) {
  const view = new DataView(new ArrayBuffer(44));
  const letters = (at, text) => [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  letters(0, "RIFF");
  view.setUint32(4, 36 + size, true);
  letters(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  letters(36, "data");
  view.setUint32(40, size, true);
  return view.buffer;
}
