// Runs before the first paint: a chosen theme must not flash. Without a choice the system's theme counts.
"use strict";
try {
  const chosen = localStorage.getItem("paceline-report-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // storage is blocked: the system's theme it is
}
