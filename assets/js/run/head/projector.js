// Projector mode: the curves large, nothing to press. And the view for phones, which only looks.

import { setAttribute } from "../../shared/dom.js";

const QUERY = "projector";

/** Follows the address and the key F, and says when it changed something; returns a function that ends it. */
export function projector(header, onChange) {
  const set = (isOn) => {
    document.documentElement.classList.toggle("ddp-projector", isOn);
    setAttribute(header.projectorButton, "aria-pressed", String(isOn));
    const url = new URL(window.location.href);
    if (isOn) url.searchParams.set(QUERY, "1");
    else url.searchParams.delete(QUERY);
    window.history.replaceState(null, "", url);
    onChange();
  };
  const toggle = () => set(!document.documentElement.classList.contains("ddp-projector"));
  const onKey = (event) => {
    if (event.target.closest?.("input, textarea, select, [contenteditable]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "f") toggle();
    if (event.key === "Escape" && document.documentElement.classList.contains("ddp-projector")) set(false);
  };
  header.projectorButton.addEventListener("click", toggle);
  document.addEventListener("keydown", onKey);
  const query = new URLSearchParams(window.location.search);
  if (query.has(QUERY)) set(true);
  document.documentElement.classList.toggle("ddp-watch-only", query.has("watch"));
  return () => {
    document.removeEventListener("keydown", onKey);
    document.documentElement.classList.remove("ddp-projector", "ddp-watch-only");
  };
}
