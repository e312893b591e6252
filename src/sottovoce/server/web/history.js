// What was done and can be undone: steps {undo, redo}.

const MOST = 200;

export class History extends EventTarget {
  constructor() {
    super();
    this.clear();
  }

  clear() {
    this.done = [];
    this.undone = [];
    this.dispatchEvent(new Event("change"));
  }

  // Do a step, and remember it.
  do(step) {
    step.redo();
    this.remember(step);
  }

  // Remember a step that was done.
  remember(step) {
    this.done.push(step);
    this.done.splice(0, this.done.length - MOST);
    this.undone = [];
    this.dispatchEvent(new Event("change"));
  }

  undo() {
    const step = this.done.pop();
    if (!step) return;
    step.undo();
    this.undone.push(step);
    this.dispatchEvent(new Event("change"));
  }

  redo() {
    const step = this.undone.pop();
    if (!step) return;
    step.redo();
    this.done.push(step);
    this.dispatchEvent(new Event("change"));
  }
}
