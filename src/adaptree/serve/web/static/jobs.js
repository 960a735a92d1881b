// The list stays up to date while a job of it waits or runs.
import { byId } from "./app.js";

const refresh = async () => {
  if (!document.hidden) {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
    if (answer?.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const found = page.getElementById("found");
      const focused = document.activeElement?.getAttribute?.("href");
      if (found) byId("found").replaceWith(document.adoptNode(found));
      if (focused) byId("found").querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
    }
  }
  if (byId("found").dataset.active) setTimeout(refresh, 2000);
};

if (byId("found").dataset.active) setTimeout(refresh, 2000);
