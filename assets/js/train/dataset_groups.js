// Headings in the list of data sets: Gradio's lists have none.

import { setAttribute } from "../shared/dom.js";

/** Gives the first data set of each group its heading, which the style sheet draws above it. */
export function showDatasetGroups() {
  const options = document.querySelectorAll("#field-dataset [role=option]");
  if (options.length === 0) return;
  const groups = JSON.parse(
    document.getElementById("ddp-dataset-groups")?.getAttribute("data-groups") ?? "{}",
  );
  const isNew = [...options].every((option) => !option.hasAttribute("data-group"));
  let newest = null;
  for (const option of options) {
    const group = groups[option.getAttribute("aria-label") ?? ""] ?? null;
    setAttribute(option, "data-group", group === newest ? null : group);
    newest = group;
  }
  // Gradio has scrolled to the selected one without the headings.
  const selected = document.querySelector("#field-dataset [aria-selected=true]");
  if (isNew) selected?.scrollIntoView({ block: "center" });
}
