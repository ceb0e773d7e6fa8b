// Ties the page together: chat, live side, keys, theme.
import { loadModel, startChat } from "./chat.js";
import { $ } from "./dom.js";
import { keys } from "./events.js";
import { openKeys, startLive } from "./live.js";

const live = startLive();
startChat();

$("keys-open").addEventListener("click", openKeys);
$("keys-cancel").addEventListener("click", () => $("keys").close());
$("keys-form").addEventListener("submit", (event) => {
  event.preventDefault();
  for (const name of ["api-key", "admin-key"]) {
    keys.set(name, $(name).value.trim());
    $(name).value = "";
  }
  $("keys").close();
  loadModel();
  live.reconnect();
});

const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

function showTheme() {
  const other = isDark() ? "light" : "dark";
  $("theme").textContent = other[0].toUpperCase() + other.slice(1);
  $("theme").setAttribute("aria-label", `Switch to the ${other} theme`);
  live.redraw();
}

$("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("paceline-theme", theme);
  } catch {
    // storage is blocked: the choice lasts as long as the page
  }
  showTheme();
});
dark.addEventListener("change", showTheme);
showTheme();
