// The communication check: start, follow, stop.

import { CommandLine } from "../shared/command.js";
import { el, section, setAttribute, setText } from "../shared/dom.js";
import { CheckResult } from "./check_result.js";
import { callEndpoint } from "../shared/net.js";
import { term } from "../shared/terms.js";
import { complain } from "../shared/toast.js";

const FOLLOW_EVERY_MS = 400;
const TRY_AGAIN_MS = 2000;

export class CommunicationCheck {
  constructor({
    backend,
    fewest_ranks: fewest,
    most_ranks: most,
    default_ranks: usual,
    command,
    newest_check_id: newest,
  }) {
    this.command = command;
    this.kind = backend === "nccl" ? "GPU" : "CPU rank";
    this.checkId = null;
    this.state = "none";
    this.timer = null;
    this.isClosed = false;
    const numbers = Array.from({ length: most - fewest + 1 }, (_, index) => fewest + index);
    const options = numbers.map((number) =>
      el("option", { value: number, selected: number === usual }, `${number} ${this.kind}s`),
    );
    this.select = el(
      "select",
      { "aria-label": "Between how many ranks", onchange: () => this.showCommand() },
      options,
    );
    this.start = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-main", onclick: () => this.begin() },
      "Measure",
    );
    this.stop = el(
      "button",
      { type: "button", class: "ddp-button ddp-button-stop", onclick: () => this.end(), disabled: true },
      "Stop",
    );
    this.busy = el("p", { class: "ddp-hint ddp-check-busy" });
    this.commandLine = new CommandLine("", "the command of the check");
    this.result = new CheckResult();
    this.element = this.layOut(backend === "nccl" ? "NCCL" : "gloo");
    this.showCommand();
    if (newest) this.follow(newest);
  }

  layOut(backend) {
    const why = [
      "In every step of training the ",
      term("rank", "ranks"),
      " average their ",
      term("gradient", "gradients"),
      ": an ",
      term("all-reduce"),
      ". This runs real all-reduces, with tensors of 1 kB to 66 MB over ",
      term(backend),
      ", checks that the sums are right, and shows the bandwidth.",
    ];
    return section(
      "How fast the ranks communicate",
      "check",
      el("p", { class: "ddp-caption" }, ...why),
      el(
        "div",
        { class: "ddp-buttons" },
        el("label", { class: "ddp-from" }, el("span", {}, "between"), this.select),
        this.start,
        this.stop,
        this.busy,
      ),
      this.result.element,
      this.commandLine.element,
    );
  }

  /** Names the runs that use the same devices as the check. */
  update({ runs }) {
    const names = runs.map((run) => run.run_id);
    setText(
      this.busy,
      names.length === 0
        ? ""
        : `${runNames(names)} the same devices: results will be lower than on an idle machine.`,
    );
  }

  showCommand() {
    this.commandLine.update(
      this.command.replace("--nproc-per-node N", `--nproc-per-node ${this.select.value}`),
    );
  }

  async begin() {
    this.start.disabled = true;
    try {
      const check = await callEndpoint("check_communication", Number(this.select.value));
      this.take(check);
      this.follow(check.check_id);
    } catch (error) {
      complain(error.message);
      this.setButtons();
    }
  }

  async end() {
    this.stop.disabled = true;
    try {
      this.take(await callEndpoint("stop_communication_check", this.checkId));
    } catch (error) {
      complain(error.message);
      this.setButtons();
    }
  }

  /** Polls a check until it has ended; pauses while the page is hidden. */
  follow(checkId) {
    this.checkId = checkId;
    clearTimeout(this.timer ?? undefined);
    const look = async () => {
      let restMs = FOLLOW_EVERY_MS;
      if (document.visibilityState === "visible") {
        try {
          const check = await callEndpoint("communication_check", checkId);
          if (this.isClosed || checkId !== this.checkId) return;
          this.take(check);
          if (check.state !== "running") return;
        } catch (error) {
          this.result.say(`${error.message} Trying again …`, "failed");
          restMs = TRY_AGAIN_MS;
        }
      }
      if (!this.isClosed) this.timer = setTimeout(look, restMs);
    };
    look();
  }

  take(check) {
    // Ignore an outdated answer that arrives after the final one.
    if (this.state !== "running" && check.check_id === this.checkId && check.state === "running") return;
    this.checkId = check.check_id;
    this.state = check.state;
    this.setButtons();
    this.result.take(check);
  }

  setButtons() {
    const isRunning = this.state === "running";
    this.start.disabled = isRunning;
    setAttribute(this.start, "aria-busy", isRunning);
    if (isRunning) this.start.dataset.busy = "true";
    else delete this.start.dataset.busy;
    this.stop.disabled = !isRunning;
  }

  close() {
    this.isClosed = true;
    clearTimeout(this.timer ?? undefined);
    this.result.close();
  }
}

function runNames(names) {
  return names.length === 1 ? `Run ${names[0]} uses` : `Runs ${names.join(", ")} use`;
}
