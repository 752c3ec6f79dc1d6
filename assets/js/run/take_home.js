// The card "Use this model": a zip with everything that is needed to use it elsewhere, and how to load it.

import { bytes, count } from "../shared/format.js";
import { callEndpoint, fetchJson, runAddress } from "../shared/net.js";
import { CommandLine } from "../shared/command.js";
import { el, section, setText, show } from "../shared/dom.js";
import { installLine } from "../machine/install.js";

const ASK_EVERY_MS = 500;
const BROKEN = "This run was broken on purpose, so its model is not useful and cannot be downloaded.";
const NONE_YET = "There is no checkpoint yet: the model can be taken home as soon as one is saved.";
const WHAT =
  "One zip to use the model on any computer: weights, the network for torch and as ONNX, labels and preprocessing, a script that runs it on a file, a page that runs it in any browser, and a model card.";

export class TakeHomePanel {
  /** @param {string} runId @param {{ mistake: unknown }} summary */
  constructor(runId, { mistake }) {
    this.runId = runId;
    this.isBroken = Boolean(mistake);
    this.isClosed = false;
    this.words = el("p", { class: "ddp-empty" }, this.isBroken ? BROKEN : NONE_YET);
    this.choice = el("select", { class: "ddp-wide", "aria-label": "Checkpoint to take home" });
    this.choice.addEventListener("change", () => {
      show(this.link, false);
      show(this.page, false);
      this.showCode();
    });
    this.button = el("button", { type: "button", class: "ddp-button" }, "Take it home");
    this.button.addEventListener("click", () => this.pack());
    this.progress = el("progress", { max: 1, value: 0, hidden: true, "aria-label": "Packing the model" });
    this.status = el("p", { class: "ddp-hint", role: "status" });
    this.link = el("a", { class: "ddp-button ddp-button-main", hidden: true, download: "" });
    this.page = el("a", { class: "ddp-button", hidden: true, download: "" });
    this.install = el(
      "div",
      { hidden: true },
      installLine("onnx_export", "press “Take it home” again for a zip with model.onnx."),
    );
    this.code = new CommandLine("", "load the model in plain PyTorch");
    this.fold = el(
      "details",
      { class: "ddp-try-fold" },
      el("summary", {}, "In plain PyTorch"),
      el("p", { class: "ddp-hint" }, "Run this in the unpacked folder. Our source code is not needed:"),
      this.code.element,
    );
    this.fold.addEventListener("toggle", () => this.showCode());
    this.body = el(
      "div",
      { hidden: true },
      el("p", { class: "ddp-caption" }, WHAT),
      el("div", { class: "ddp-buttons" }, this.choice, this.button, this.link, this.page),
      this.progress,
      this.status,
      this.install,
      this.fold,
    );
    this.element = section("Use this model", "take-home", this.words, this.body);
  }

  /** `best` is the step of the best evaluation so far, or null. */
  update(checkpoints, best) {
    if (!checkpoints || this.isBroken) return;
    const newest = [...checkpoints].sort((a, b) => b.saved_unix_s - a.saved_unix_s);
    const chosen = this.choice.value;
    this.choice.replaceChildren(
      ...newest.map(({ step }, index) => {
        const notes = [index === 0 ? "latest" : "", step === best ? "best" : ""].filter(Boolean).join(", ");
        return el("option", { value: step }, `step ${count(step)}${notes ? ` (${notes})` : ""}`);
      }),
    );
    if (newest.some(({ step }) => String(step) === chosen)) this.choice.value = chosen;
    show(this.words, newest.length === 0);
    show(this.body, newest.length > 0);
  }

  async pack() {
    this.button.disabled = true;
    show(this.link, false);
    show(this.page, false);
    show(this.progress, true);
    try {
      let state = await callEndpoint("take_home", this.runId, Number(this.choice.value));
      while (state.state === "running" && !this.isClosed) {
        this.progress.max = state.of;
        this.progress.value = state.done;
        setText(this.status, `Packing: ${state.doing} …`);
        await new Promise((resolve) => {
          setTimeout(resolve, ASK_EVERY_MS);
        });
        state = await callEndpoint("taken_home", state.take_home_id);
      }
      this.finish(state);
    } catch (error) {
      setText(this.status, `Not packed. ${error.message}`);
    }
    show(this.progress, false);
    this.button.disabled = false;
  }

  finish({
    state,
    step,
    take_home_id: id,
    size_bytes: size,
    onnx_problem: noOnnx,
    page_problem: noPage,
    error,
  }) {
    if (state !== "done") {
      setText(this.status, `Not packed: ${error}`);
      return;
    }
    this.link.href = runAddress(this.runId, `take_home/${id}`);
    setText(this.link, `Download step ${count(step)}, ${bytes(size)}`);
    show(this.link, true);
    this.page.href = runAddress(this.runId, `take_home/${id}/try.html`);
    setText(this.page, "Only try.html");
    show(this.page, !noPage);
    show(this.install, Boolean(noOnnx));
    const missing = noOnnx
      ? `, without model.onnx and try.html: ${noOnnx}. The packages have about 46 MB`
      : "";
    const lonely = noPage && !noOnnx ? `, without try.html: ${noPage}` : "";
    setText(this.status, `Packed${missing}${lonely}.`);
  }

  async showCode() {
    if (!this.fold.open) return;
    this.code.update("Reading the description of the model …");
    try {
      const { code } = await fetchJson(runAddress(this.runId, "model", { step: this.choice.value }));
      this.code.update(code);
    } catch (error) {
      this.code.update(error.message);
    }
  }

  close() {
    this.isClosed = true;
  }
}
