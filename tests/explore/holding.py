"""A page whose long answers come when a test lets them: what is shown before them can then be looked at on any machine."""

# The last message of a question to the static page's worker waits for `release()`.
HOLD_WORKER = """(() => {
  let free;
  const released = new Promise((done) => { free = done; });
  globalThis.release = free;
  const { Worker } = globalThis;
  globalThis.Worker = class extends Worker {
    constructor(...given) {
      super(...given);
      super.addEventListener("message", (event) => {
        if (event.data.status === undefined || event.data.letGo) return;
        event.stopImmediatePropagation();
        const data = { ...event.data, letGo: true };
        released.then(() => this.dispatchEvent(new MessageEvent("message", { data })));
      });
    }
  };
})()"""

# The local page reads a stream line by line and, once a line told what the run has come to, no further until `release()`.
HOLD_STREAM = """
const read = ReadableStreamDefaultReader.prototype.read;
const held = new Promise((done) => { globalThis.release = done; });
ReadableStreamDefaultReader.prototype.read = async function () {
  if (this.told) await held;
  if (!this.kept) {
    const { done, value } = await read.call(this);
    if (done) return { done };
    this.kept = value;
  }
  const end = this.kept.indexOf("\\n") + 1 || this.kept.length;
  const value = this.kept.slice(0, end);
  this.kept = this.kept.slice(end);
  this.told ||= value.endsWith("\\n");
  return { done: false, value };
};
"""
