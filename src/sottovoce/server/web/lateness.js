// How late the words come: the latency of the last ones, and, where the server falls behind, by how much and what helps.

const WORDS_OF_LATENCY = 20;
const LATE_S = 3; // from here on words come late
const IN_TIME_S = 2; // and until here they still do, so that the line does not flicker
const $ = (id) => document.getElementById(id);

export class Lateness {
  constructor() {
    this.latencies = [];
    this.isLate = false;
  }

  take(message, offset, connection) {
    if (message.type === "partial") this.note(message.words, offset, connection);
    if (message.type === "status" && connection) this.show(Math.max(0, connection.seconds - offset - message.received) + message.behind_s);
  }

  note(words, offset, connection) {
    if (connection?.state !== "live") return; // after a break words come late, and that is no latency
    for (const { end } of words) this.latencies.push(connection.seconds - end - offset);
    this.latencies.splice(0, this.latencies.length - WORDS_OF_LATENCY);
    if (!this.isLate) this.showLatency();
  }

  showLatency() {
    const middle = [...this.latencies].sort((a, b) => a - b)[Math.floor(this.latencies.length / 2)];
    $("latency").hidden = middle === undefined;
    $("latency").textContent = middle === undefined ? "" : `${Math.max(0, middle).toFixed(1)} s`;
  }

  // behind: seconds of sound that are not worked on yet, there or on their way.
  show(behind) {
    this.isLate = behind >= (this.isLate ? IN_TIME_S : LATE_S);
    $("late").hidden = !this.isLate;
    $("latency").classList.toggle("late", this.isLate);
    if (!this.isLate) {
      this.showLatency();
      return;
    }
    const seconds = `${behind.toFixed(behind < 10 ? 1 : 0)} s`;
    $("latency").hidden = false;
    $("latency").textContent = `${seconds} behind`;
    $("late-by").textContent = `Captions are ${behind.toFixed(0)} s late.`;
  }

  end() {
    this.clear();
  }

  clear() {
    this.latencies = [];
    this.show(0);
  }
}
