// Headings in the list of data sets, which Gradio's dropdown does not support.

import { setAttribute } from "../shared/dom.js";

/** Sets the group heading on the first data set of each group; CSS draws it above the option. */
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
  // Gradio scrolled to the selected option before the headings were added.
  const selected = document.querySelector("#field-dataset [aria-selected=true]");
  if (isNew) selected?.scrollIntoView({ block: "center" });
}
