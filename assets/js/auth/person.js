// Who looks at the page, and what of others' runs they may change. The server decides; here nothing is offered in vain.

import { address, fetchJson } from "../shared/net.js";

// Where nobody logs in, and until it is known.
const EVERYBODY = { has_login: false, has_logout: false, name: "", role: "teacher" };
let asked = null;

/** Resolves to {has_login, has_logout, name, role} of who looks. */
export function person() {
  asked ??= fetchJson(address("live/me")).catch(() => {
    asked = null;
    return EVERYBODY;
  });
  return asked;
}

/** Whether somebody may stop, rename or delete a run of this owner. */
export function mayChange(who, owner) {
  return who.role === "teacher" || (who.name !== "" && owner === who.name);
}

/** Why somebody may not. */
export function whyNot(owner) {
  return owner
    ? `This run belongs to ${owner}. Only ${owner} or a teacher can change it.`
    : "This run has no owner. Only a teacher can change it.";
}
