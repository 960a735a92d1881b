// What all pages share: light or dark, and a button beside each block of code that copies it.
"use strict";

(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  // A browser may refuse storage to pages from disk: the choice then lasts for this page.
  const stored = (value) => {
    try {
      if (value !== undefined) localStorage.setItem("theme", value);
      return localStorage.getItem("theme");
    } catch {
      return null;
    }
  };

  const apply = (theme) => {
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  };

  const current = () => root.dataset.theme || (system.matches ? "dark" : "light");

  const themeButton = () => {
    const button = document.getElementById("theme");
    const say = () => { button.textContent = current() === "dark" ? "☀ Light" : "☾ Dark"; };
    button.addEventListener("click", () => {
      const other = current() === "dark" ? "light" : "dark";
      apply(other);
      stored(other);
      say();
    });
    system.addEventListener("change", say);
    say();
    button.hidden = false;
  };

  // Without a secure context there is no clipboard API: the text is selected and copied the old way.
  const copy = async (pre) => {
    const text = pre.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      getSelection().selectAllChildren(pre);
      document.execCommand("copy");
      getSelection().removeAllRanges();
    }
  };

  const copyButton = (pre) => {
    const box = document.createElement("div");
    const button = document.createElement("button");
    box.className = "code";
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      await copy(pre);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    pre.replaceWith(box);
    box.append(pre, button);
  };

  // What scrolls sideways must be reachable with the keyboard.
  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });

  const prepare = (part) => {
    part.querySelectorAll("pre").forEach(copyButton);
    part.querySelectorAll("pre, .wide:not([tabindex])").forEach((box) => sizes.observe(box));
  };

  window.prepare = prepare; // for what comes into a page later
  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    themeButton();
    prepare(document);
  });
})();
