// The bin: deleted runs, which can be restored or deleted permanently.

import { openDialog } from "../shared/dialog.js";
import { el, setText, show } from "../shared/dom.js";
import { ago, bytes, count, dateTime } from "../shared/format.js";
import { callEndpoint } from "../shared/net.js";
import { mayChange, person } from "../auth/person.js";
import { CHANGED } from "./actions.js";
import { act, complain, inform } from "../shared/toast.js";
import { titleWithWayBack } from "./title.js";

export class BinView {
  /** `onBack(event)` returns to the list. */
  constructor(onBack) {
    this.body = el("tbody", {});
    this.table = el(
      "table",
      { class: "ddp-table ddp-bin-table", hidden: true },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["Run", "Deleted", "Size", ""].map((title) =>
            el("th", { scope: "col" }, title || el("span", { class: "ddp-unseen" }, "Actions")),
          ),
        ),
      ),
      this.body,
    );
    this.nothing = el("p", { class: "ddp-empty", hidden: true }, "The bin is empty.");
    this.empty = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-stop", hidden: true },
      "Empty the bin …",
    );
    this.empty.addEventListener("click", () => this.askToEmpty());
    this.element = el(
      "div",
      { class: "ddp ddp-runs-page" },
      titleWithWayBack("Bin", onBack),
      el(
        "p",
        { class: "ddp-caption" },
        "Deleted runs stay here with all their files until you empty the bin. Nothing is deleted automatically.",
      ),
      this.nothing,
      this.table,
      this.empty,
    );
    document.title = "Bin · Rankscope";
    this.who = null;
    /** @type {Record<string, any>[]} */
    this.items = [];
    /** @type {Record<string, any>[]} */
    this.mine = [];
    this.onChanged = () => this.load();
    window.addEventListener(CHANGED, this.onChanged);
    this.load();
  }

  async load() {
    try {
      [this.who, this.items] = await Promise.all([person(), callEndpoint("list_bin")]);
      this.mine = this.items.filter((item) => mayChange(this.who, item.owner));
    } catch (error) {
      complain(error.message);
      return;
    }
    show(this.nothing, this.items.length === 0);
    show(this.table, this.items.length > 0);
    show(this.empty, this.mine.length > 0);
    setText(this.empty, `Empty the bin (${bytes(this.size())}) …`);
    this.body.replaceChildren(...this.items.map((item) => this.row(item)));
  }

  size() {
    return this.mine.reduce((sum, item) => sum + item.size_bytes, 0);
  }

  row(item) {
    const isMine = mayChange(this.who, item.owner);
    const restore = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-small", "aria-label": `Restore ${item.name}` },
      "Restore",
    );
    restore.addEventListener("click", async () => {
      if (await act(restore, "restore_runs", [item.bin_id])) this.load();
    });
    return el(
      "tr",
      {},
      el(
        "td",
        {},
        el("strong", {}, item.name),
        item.name === item.run_id ? null : el("small", {}, item.run_id),
      ),
      el("td", { title: dateTime(item.deleted_unix_s) }, ago(item.deleted_unix_s)),
      el("td", {}, bytes(item.size_bytes)),
      el("td", {}, isMine ? restore : `of ${item.owner ?? "no one"}`),
    );
  }

  async askToEmpty() {
    const num = this.mine.length;
    const runs = num === 1 ? "1 run" : `${count(num)} runs`;
    const worked = await openDialog({
      title: "Delete permanently?",
      content: el(
        "p",
        {},
        `${runs} with all checkpoints and logs will be deleted, which frees ${bytes(this.size())}. This cannot be undone.`,
      ),
      confirm: `Delete ${runs} permanently`,
      isDangerous: true,
      // Only the runs that were shown: others may have been deleted since then.
      onConfirm: async () =>
        inform(
          (
            await callEndpoint(
              "empty_bin",
              this.mine.map((item) => item.bin_id),
            )
          ).message,
        ),
    });
    if (worked) this.load();
  }

  close() {
    window.removeEventListener(CHANGED, this.onChanged);
  }
}
