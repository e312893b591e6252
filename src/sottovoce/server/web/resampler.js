// Any sample rate to another, one channel, in pieces: a windowed sinc as a polyphase filter.
// The pass band ends at 90 % of the lower Nyquist frequency; what would fold back is down by 70 dB and more.

const ZERO_CROSSINGS = 24; // on each side
const KAISER_BETA = 7.5;
const PASS = 0.9;

function greatestCommonDivisor(a, b) {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}

// Modified Bessel function of the first kind, order 0.
function bessel(x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; term > 1e-10 * sum; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

function sinc(x) {
  return x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
}

export class Resampler {
  constructor(inputRate, outputRate) {
    const divisor = greatestCommonDivisor(Math.round(inputRate), Math.round(outputRate));
    this.up = Math.round(outputRate) / divisor;
    this.down = Math.round(inputRate) / divisor;
    const cutoff = PASS * Math.min(1, outputRate / inputRate); // of the input's Nyquist frequency
    this.half = Math.ceil(ZERO_CROSSINGS / cutoff);
    this.taps = Array.from({ length: this.up }, (_, phase) => this.filter(phase / this.up, cutoff));
    this.history = new Float32Array(this.half - 1); // silence: the first output sample lies on the first of the input
    this.phase = 0; // of the next output sample, in 1/up of an input sample after the middle of the history
  }

  // Weights of 2 * half input samples for an output sample at `fraction` behind the middle one.
  filter(fraction, cutoff) {
    const taps = new Float32Array(2 * this.half);
    let sum = 0;
    for (let i = 0; i < taps.length; i += 1) {
      const distance = i - (this.half - 1) - fraction;
      const edge = Math.min(1, Math.abs(distance) / this.half);
      taps[i] = cutoff * sinc(cutoff * distance) * (bessel(KAISER_BETA * Math.sqrt(1 - edge * edge)) / bessel(KAISER_BETA));
      sum += taps[i];
    }
    return taps.map((tap) => tap / sum);
  }

  // Float32Array in, Float32Array out; the filter holds back `half` samples.
  push(input) {
    const samples = new Float32Array(this.history.length + input.length);
    samples.set(this.history);
    samples.set(input, this.history.length);
    const output = [];
    let start = 0;
    while (start + 2 * this.half <= samples.length) {
      const taps = this.taps[this.phase];
      let value = 0;
      for (let i = 0; i < taps.length; i += 1) value += taps[i] * samples[start + i];
      output.push(value);
      this.phase += this.down;
      start += Math.floor(this.phase / this.up);
      this.phase %= this.up;
    }
    this.history = samples.slice(start);
    return Float32Array.from(output);
  }

  // What the filter still holds.
  flush() {
    return this.push(new Float32Array(this.half));
  }
}
