// Runs before the first paint and before any other script.

// Chooses the light or dark theme: from the URL, else from this browser's setting, else from the system.

(() => {
  const root = document.documentElement;
  let storedTheme = null;
  try {
    storedTheme = JSON.parse(window.localStorage.getItem("ddp:theme") ?? "null");
  } catch {
    // Storage is unavailable: follow the system.
  }
  const requestedTheme = new URLSearchParams(window.location.search).get("__theme");
  const theme = requestedTheme === "light" || requestedTheme === "dark" ? requestedTheme : storedTheme;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const isDark = theme ? theme === "dark" : system.matches;
    root.classList.toggle("dark", isDark);
  };
  apply();
  if (!theme) system.addEventListener("change", apply);
})();

// Gradio's client closes streams it no longer needs and logs an AbortError: hide these, nothing has failed.
(() => {
  const report = console.error;
  console.error = (...what) => {
    const isClosedStream =
      what.length === 1 && what[0] instanceof DOMException && what[0].name === "AbortError";
    if (!isClosedStream) report.apply(console, what);
  };
})();
