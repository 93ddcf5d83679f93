"""A page whose long answers come when a test lets them: what is shown before them can then be looked at on any machine."""

# The last message of a question to the static page's worker waits for `release()`.
HOLD = """(() => {
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
