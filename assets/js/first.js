// Runs before anything is painted and before any other script.

// Light or dark, as this browser was told, or as the system is.

(() => {
  const root = document.documentElement;
  let kept = null;
  try {
    kept = JSON.parse(window.localStorage.getItem("ddp:theme") ?? "null");
  } catch {
    // Nothing kept: as the system is.
  }
  const asked = new URLSearchParams(window.location.search).get("__theme");
  const theme = asked === "light" || asked === "dark" ? asked : kept;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const isDark = theme ? theme === "dark" : system.matches;
    root.classList.toggle("dark", isDark);
  };
  apply();
  if (!theme) system.addEventListener("change", apply);
})();

// Gradio's client closes a stream that it needs no more, and reports that as an error: nothing went wrong.
(() => {
  const report = console.error;
  console.error = (...what) => {
    const isClosedStream =
      what.length === 1 && what[0] instanceof DOMException && what[0].name === "AbortError";
    if (!isClosedStream) report.apply(console, what);
  };
})();
