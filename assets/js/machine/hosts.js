// The SSH hosts of runs: state, hardware, versions and problems of each.

import { el, icon, section, setText, show } from "../shared/dom.js";
import { bytes, count } from "../shared/format.js";
import { Links } from "./links.js";
import { keepRows, runLink } from "./parts.js";

/** The section of the hosts; hidden if runs train on this machine. */
export function hostsSection() {
  const lead = el("p", { class: "ddp-caption" });
  const list = el("ul", { class: "ddp-missing-list" });
  const links = new Links();
  const element = section("Hosts", "hosts", lead, list, links.element);
  show(element, false);
  return {
    element,
    update({ hosts, links: measured }) {
      show(element, hosts !== null);
      if (hosts === null) return;
      links.update(measured);
      setText(lead, leadWords(hosts));
      keepRows(list, hosts, JSON.stringify, newHost, () => {});
    },
  };
}

function leadWords(hosts) {
  if (hosts.length === 0) return "Asking each host …";
  const troubled = hosts.filter((host) => host.problems.length > 0).length;
  const free = hosts.filter((host) => host.is_reachable && host.run_id === "").length;
  const state = `${count(free)} of ${count(hosts.length)} can take a run now.`;
  return troubled === 0
    ? `${state} All fit together.`
    : `${state} ${count(troubled)} ${troubled === 1 ? "needs" : "need"} attention.`;
}

function newHost(host) {
  const sign = host.problems.length > 0 ? el("span", { class: "ddp-missing-sign" }, icon("warning")) : null;
  const train = host.run_id === "" ? "free" : ["trains ", runLink(host.run_id)];
  return el(
    "li",
    { "data-problem": host.problems.length > 0 },
    el("h3", {}, host.name, " · ", host.is_reachable ? train : "not reached", sign),
    host.is_reachable ? el("p", {}, facts(host).join(" · ")) : null,
    host.problems.map((words) => el("p", {}, words)),
  );
}

function facts(host) {
  const gpus = host.gpu_names.length === 0 ? "no GPU" : host.gpu_names.join(", ");
  const users = host.gpu_users.length === 0 ? [] : [`GPUs used by ${host.gpu_users.join(", ")}`];
  const clock = host.clock_off_s === null ? [] : [clockWords(host.clock_off_s)];
  return [
    gpus,
    ...users,
    `${count(host.num_cores)} cores`,
    `${bytes(host.memory_bytes)} memory`,
    host.torch === null ? "no torch" : `torch ${host.torch}`,
    ...codeWords(host),
    ...clock,
    ...(host.sees_runs === null ? [] : [host.sees_runs ? "sees the runs" : "does not see the runs"]),
  ];
}

/** The version of this project on a host. Without a shared folder the code is copied with each run. */
function codeWords({ code, sees_runs: seesRuns }) {
  if (code !== null) return [`code ${code}`];
  return seesRuns === null ? [] : ["this project is missing there"];
}

function clockWords(offS) {
  return offS === 0
    ? "clock agrees"
    : `clock ${Math.abs(offS).toFixed(2)} s ${offS > 0 ? "ahead" : "behind"}`;
}
