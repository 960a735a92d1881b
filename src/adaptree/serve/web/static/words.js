// Numbers as people read them.

export const bytes = (count) => {
  const units = ["B", "KB", "MB", "GB"];
  let at = 0;
  while (count >= 1000 && at < 3) { count /= 1000; at += 1; }
  return `${at ? count.toFixed(1) : count} ${units[at]}`;
};

export const duration = (seconds) => {
  if (seconds == null) return "–";
  if (seconds < 59.5) return `${Math.max(1, Math.round(seconds))} s`;
  const minutes = Math.floor(Math.round(seconds) / 60);
  if (minutes < 10) return `${minutes} min ${Math.round(seconds) % 60} s`;
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

export const score = (value) => (value == null ? "–" : Math.abs(value) < 10 ? value.toFixed(3) : value.toFixed(1));
export const percent = (share) => `${Math.round(100 * share)} %`;
