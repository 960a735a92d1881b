// Search from disk: a page opened as file:// may not start a Worker, so its script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inner = frame.contentWindow
      inner.document.open()
      inner.document.write("<!doctype html><body></body>")
      inner.document.close()
      // What the script posts goes to our listeners, not to its own frame.
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = new Promise((resolve, reject) => {
        const script = inner.document.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        inner.document.body.appendChild(script)
      })
      this.inner = inner
      this.frame = frame
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
